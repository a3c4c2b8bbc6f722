-- Grouping sets, filters, ordered-set and hypothetical aggregates, an own aggregate.
CREATE TABLE sale (region text, product text, n int);
INSERT INTO sale VALUES ('n', 'x', 1), ('n', 'y', 2), ('s', 'x', 3), ('s', 'x', 4);
SELECT region, product, sum(n) FROM sale GROUP BY GROUPING SETS ((region, product), (region), ()) ORDER BY 1, 2, 3;
SELECT region, product, sum(n), grouping(region, product) FROM sale GROUP BY CUBE (region, product) ORDER BY 4, 1, 2;
SELECT region, sum(n) FROM sale GROUP BY ROLLUP (region) HAVING sum(n) > 3 ORDER BY 1;
SELECT count(*) FILTER (WHERE n > 2), string_agg(DISTINCT product, ',' ORDER BY product), bool_and(n > 0), every(n < 4), bit_or(n) FROM sale;
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY n), percentile_disc(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY n), mode() WITHIN GROUP (ORDER BY product), rank(3) WITHIN GROUP (ORDER BY n) FROM sale;
SELECT stddev(n), variance(n), corr(n, n), regr_slope(n, n * 2) FROM sale;
CREATE FUNCTION mulsfunc(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * $2';
CREATE AGGREGATE mul (int) (SFUNC = mulsfunc, STYPE = int, INITCOND = '1');
SELECT mul(n), mul(DISTINCT n) FROM sale;
SELECT region FROM sale GROUP BY product;
SELECT sum(n) FROM sale WHERE sum(n) > 1;
SELECT sum(sum(n)) FROM sale;
SELECT DISTINCT ON (region) region, n FROM sale ORDER BY region, n DESC;
SELECT n FROM sale ORDER BY n FETCH FIRST 2 ROWS WITH TIES;
DROP AGGREGATE mul (int);
