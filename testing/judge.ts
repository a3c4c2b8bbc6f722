/** For tests: tables whose rows say whether their transaction was inside a gate or a bracket when they were written. */

/** True in a transaction that holds a gate or a bracket. */
const INSIDE_SQL = `EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND (
  (mode = 'RowShareLock' AND relation::regclass::text LIKE 'fence.gate_%')
  OR (locktype = 'advisory' AND classid = 1279673923)))`;

/** Makes the table `w (note text, fenced boolean)`, writable by `role`. */
export const judgedTableSql = (role: string): string => `
  CREATE TABLE w (note text, fenced boolean);
  CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
  BEGIN
    NEW.fenced := ${INSIDE_SQL};
    RETURN NEW;
  END $$;
  CREATE TRIGGER judge BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION judge();
  GRANT ALL ON w TO ${role};`;

/**
 * Makes the table `t (a int)`, writable by `role`, and `judged`, where each statement that writes to it leaves the
 * generation of its session, and whether it was inside.
 */
export const judgedStatementsSql = (role: string): string => `
  CREATE TABLE t (a int);
  CREATE TABLE judged (id bigserial PRIMARY KEY, generation bigint NOT NULL, fenced boolean NOT NULL);
  CREATE FUNCTION judge_statement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
  BEGIN
    INSERT INTO judged (generation, fenced)
    SELECT s.generation, ${INSIDE_SQL}
    FROM fence.session s JOIN pg_stat_activity a ON a.pid = s.pid AND a.backend_start = s.backend_start
    WHERE s.pid = pg_backend_pid();
    RETURN NULL;
  END $$;
  CREATE TRIGGER judge AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION judge_statement();
  GRANT ALL ON t TO ${role};`;
