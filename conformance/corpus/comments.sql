-- Comments, odd quoting and empty statements around transactions.
/* leading */ BEGIN /* in /* nested */ it */ ;
CREATE TABLE "semi;colon" ("quo""te" int); -- trailing; comment
INSERT INTO "semi;colon" VALUES (1); /* ; */
SELECT $$dollar; COMMIT; $$, $tag$ $$ ; $tag$, E'esc\'; aped', 'it''s';
SELECT 'split'
  ' string; on' -- with a comment
  ' lines';
COMMIT -- now
;
;
SELECT /* hint */ "quo""te" FROM "semi;colon";
select 1 as begin, 2 as "end", 3 as "commit";
SELECT '--not a comment', '/*nor this*/';
SELECT 5 - -3, 5 --3
;
SELECT 4 /* unnested */ * /* two */ 2;
