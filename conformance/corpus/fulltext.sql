-- Full text search: documents, queries, ranking, headlines, an own configuration.
SELECT to_tsvector('english', 'The quick brown foxes jumped over the lazy dogs'), to_tsquery('english', 'fox & dog'), plainto_tsquery('english', 'quick fox'), phraseto_tsquery('english', 'brown fox'), websearch_to_tsquery('english', '"brown fox" -cat or dog');
SELECT to_tsvector('english', 'foxes') @@ to_tsquery('english', 'fox'), ts_rank('a:1 b:2'::tsvector, 'a & b'), ts_headline('english', 'the fox runs', to_tsquery('english', 'fox'));
SELECT setweight('a:1 b:2', 'A'), strip('a:1 b:2'::tsvector), 'a:1'::tsvector || 'b:1'::tsvector, numnode('a & b | !c'::tsquery), querytree('a & !b'::tsquery), 'a <-> b'::tsquery;
CREATE TABLE article (id int, title text, body text, ts tsvector GENERATED ALWAYS AS (to_tsvector('english', title || ' ' || body)) STORED);
INSERT INTO article VALUES (1, 'Cats', 'Cats sleep.'), (2, 'Dogs', 'Dogs chase cats.'), (3, 'Fish', 'Swim');
CREATE INDEX ON article USING gin (ts);
SELECT id, ts_rank(ts, q) > 0 FROM article, to_tsquery('english', 'cat') q WHERE ts @@ q ORDER BY id;
CREATE TEXT SEARCH CONFIGURATION mine (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION mine ALTER MAPPING FOR word WITH english_stem;
SELECT to_tsvector('mine', 'running dogs'), alias, token FROM ts_debug('mine', 'running') LIMIT 1;
DROP TEXT SEARCH CONFIGURATION mine;
SELECT to_tsquery('english', 'a & & b');
SELECT to_tsvector('nosuch', 'x');
SELECT ts_lexize('english_stem', 'stars');
