/** For tests: a table whose rows say whether their transaction was inside a gate or a bracket when they were written. */

/** Makes the table `w (note text, fenced boolean)`, writable by `role`. */
export const judgedTableSql = (role: string): string => `
  CREATE TABLE w (note text, fenced boolean);
  CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
  BEGIN
    NEW.fenced := EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND (
      (mode = 'RowShareLock' AND relation::regclass::text LIKE 'fence.gate_%')
      OR (locktype = 'advisory' AND classid = 1279673923)));
    RETURN NEW;
  END $$;
  CREATE TRIGGER judge BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION judge();
  GRANT ALL ON w TO ${role};`;
