-- Window functions: frames, named windows, exclusions.
CREATE TABLE emp (dept text, name text, pay int);
INSERT INTO emp VALUES ('a', 'p', 10), ('a', 'q', 20), ('a', 'r', 20), ('b', 's', 5), ('b', 't', 50);
SELECT name, rank() OVER w, dense_rank() OVER w, row_number() OVER (ORDER BY dept, name), percent_rank() OVER w, cume_dist() OVER w, ntile(2) OVER (ORDER BY name) FROM emp WINDOW w AS (PARTITION BY dept ORDER BY pay) ORDER BY dept, name;
SELECT name, lag(pay) OVER (ORDER BY name), lead(pay, 2, 0) OVER (ORDER BY name), first_value(name) OVER (ORDER BY pay, name), last_value(name) OVER (ORDER BY name), nth_value(name, 2) OVER (ORDER BY name) FROM emp ORDER BY name;
SELECT name, sum(pay) OVER (ORDER BY name ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING), sum(pay) OVER (ORDER BY pay RANGE BETWEEN 10 PRECEDING AND CURRENT ROW), sum(pay) OVER (ORDER BY pay GROUPS 1 PRECEDING EXCLUDE TIES) FROM emp ORDER BY name;
SELECT dept, sum(sum(pay)) OVER (ORDER BY dept) FROM emp GROUP BY dept ORDER BY dept;
SELECT name FROM emp WHERE rank() OVER (ORDER BY pay) = 1;
SELECT sum(pay) OVER (ROWS BETWEEN CURRENT ROW AND 1 PRECEDING) FROM emp;
SELECT count(*) FILTER (WHERE pay > 10) OVER (PARTITION BY dept) FROM emp ORDER BY 1;
EXPLAIN (COSTS OFF) SELECT rank() OVER (ORDER BY pay) FROM emp;
