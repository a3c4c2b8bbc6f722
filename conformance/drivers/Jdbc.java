import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

/** Scenarios of JDBC; see scenarios.md. */
public class Jdbc {
  interface Work { Object run() throws Exception; }

  static Connection open(String... more) throws SQLException {
    Map<String, String> e = System.getenv();
    Properties p = new Properties();
    p.setProperty("user", e.get("PGUSER"));
    p.setProperty("password", "x");
    p.setProperty("sslmode", e.get("PGSSLMODE"));
    if (e.containsKey("PGSSLROOTCERT")) p.setProperty("sslrootcert", e.get("PGSSLROOTCERT"));
    for (int i = 0; i < more.length; i += 2) p.setProperty(more[i], more[i + 1]);
    return DriverManager.getConnection("jdbc:postgresql://" + e.get("PGHOST") + ":" + e.get("PGPORT") + "/" + e.get("PGDATABASE"), p);
  }

  static String quoted(String s) {
    StringBuilder b = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c == '"' || c == '\\') b.append('\\').append(c);
      else if (c < ' ') b.append(String.format("\\u%04x", (int) c));
      else b.append(c);
    }
    return b.append('"').toString();
  }

  static String failure(Exception e) {
    String state = e instanceof SQLException ? ((SQLException) e).getSQLState() : null;
    return e.getClass().getSimpleName() + " " + state + " " + String.valueOf(e.getMessage()).split("\n")[0];
  }

  static void scenario(String name, Work work) {
    String outcome;
    try { outcome = String.valueOf(work.run()); } catch (Exception e) { outcome = failure(e); }
    System.out.println("{\"scenario\": " + quoted(name) + ", \"outcome\": " + quoted(outcome) + "}");
    System.out.flush();
  }

  static String failureOf(Work work) {
    try { return "succeeded " + work.run(); } catch (Exception e) { return failure(e); }
  }

  static List<List<Object>> rows(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql)) {
      for (int i = 0; i < args.length; i++) s.setObject(i + 1, args[i]);
      return read(s.executeQuery());
    }
  }

  static List<List<Object>> read(ResultSet r) throws SQLException {
    List<List<Object>> all = new ArrayList<>();
    while (r.next()) {
      List<Object> row = new ArrayList<>();
      for (int i = 1; i <= r.getMetaData().getColumnCount(); i++) row.add(r.getString(i));
      all.add(row);
    }
    return all;
  }

  static int update(Connection c, String sql, Object... args) throws SQLException {
    try (PreparedStatement s = c.prepareStatement(sql)) {
      for (int i = 0; i < args.length; i++) s.setObject(i + 1, args[i]);
      return s.executeUpdate();
    }
  }

  static void execute(Connection c, String sql) throws SQLException {
    try (Statement s = c.createStatement()) { s.execute(sql); }
  }

  static void scenarios() throws Exception {
    Connection c = open();
    scenario("transactions commit and roll back", () -> {
      execute(c, "CREATE TABLE t (i int primary key, v text)");
      c.setAutoCommit(false);
      update(c, "INSERT INTO t VALUES (?, ?)", 1, "a");
      c.commit();
      update(c, "INSERT INTO t VALUES (?, ?)", 2, "never");
      c.rollback();
      c.setAutoCommit(true);
      return rows(c, "SELECT * FROM t");
    });
    scenario("autocommit, several statements, generated keys", () -> {
      try (Statement s = c.createStatement()) {
        s.execute("INSERT INTO t VALUES (3, 'x'); SELECT count(*) FROM t");
        int first = s.getUpdateCount();
        s.getMoreResults();
        List<List<Object>> second = read(s.getResultSet());
        try (PreparedStatement p = c.prepareStatement("INSERT INTO t VALUES (4, 'keys')", Statement.RETURN_GENERATED_KEYS)) {
          p.executeUpdate();
          return first + " " + second + " " + read(p.getGeneratedKeys());
        }
      }
    });
    scenario("isolation levels", () -> {
      List<Object> out = new ArrayList<>();
      for (int level : new int[] {Connection.TRANSACTION_READ_COMMITTED, Connection.TRANSACTION_REPEATABLE_READ, Connection.TRANSACTION_SERIALIZABLE}) {
        try (Connection d = open()) {
          d.setTransactionIsolation(level);
          d.setAutoCommit(false);
          update(d, "UPDATE t SET v = v");
          out.add(rows(d, "SHOW transaction_isolation"));
          d.commit();
        }
      }
      return out;
    });
    for (String mode : new String[] {"ignore", "transaction", "always"}) {
      scenario("read-only with readOnlyMode=" + mode, () -> {
        try (Connection d = open("readOnlyMode", mode)) {
          d.setReadOnly(true);
          d.setAutoCommit(false);
          List<List<Object>> n = rows(d, "SELECT count(*) FROM t");
          String refused = failureOf(() -> update(d, "INSERT INTO t VALUES (900, 'ro')"));
          d.rollback();
          d.setReadOnly(false);
          update(d, "INSERT INTO t VALUES (901, 'rw')");
          d.rollback();
          return n + " " + refused;
        }
      });
    }
    scenario("read-only in autocommit", () -> {
      try (Connection d = open("readOnlyMode", "always")) {
        d.setReadOnly(true);
        String refused = failureOf(() -> update(d, "INSERT INTO t VALUES (902, 'ro')"));
        d.setReadOnly(false);
        return refused + " " + update(d, "UPDATE t SET v = v WHERE i = 1");
      }
    });
    for (String mode : new String[] {"simple", "extended", "extendedForPrepared", "extendedCacheEverything"}) {
      scenario("preferQueryMode=" + mode, () -> {
        try (Connection d = open("preferQueryMode", mode, "prepareThreshold", "1")) {
          d.setAutoCommit(false);
          for (int i = 0; i < 4; i++) update(d, "INSERT INTO t VALUES (?, ?) ON CONFLICT (i) DO UPDATE SET v = 'mode'", 10, mode);
          d.commit();
          return rows(d, "SELECT v FROM t WHERE i = ?", 10);
        }
      });
    }
    scenario("batch", () -> {
      c.setAutoCommit(false);
      try (PreparedStatement p = c.prepareStatement("INSERT INTO t VALUES (?, 'batch')")) {
        for (int i = 100; i < 400; i++) { p.setInt(1, i); p.addBatch(); }
        int sum = Arrays.stream(p.executeBatch()).sum();
        c.commit();
        return sum;
      } finally { c.setAutoCommit(true); }
    });
    scenario("batch with reWriteBatchedInserts", () -> {
      try (Connection d = open("reWriteBatchedInserts", "true"); PreparedStatement p = d.prepareStatement("INSERT INTO t VALUES (?, 'rewritten')")) {
        for (int i = 400; i < 440; i++) { p.setInt(1, i); p.addBatch(); }
        p.executeBatch();
        return rows(d, "SELECT count(*) FROM t WHERE v = 'rewritten'");
      }
    });
    scenario("batch that fails in the middle, in autocommit and in a block", () -> {
      List<Object> out = new ArrayList<>();
      for (boolean auto : new boolean[] {true, false}) {
        try (Connection d = open(); Statement s = d.createStatement()) {
          d.setAutoCommit(auto);
          s.addBatch("INSERT INTO t VALUES (500, 'b')");
          s.addBatch("INSERT INTO t VALUES (1, 'dup')");
          s.addBatch("INSERT INTO t VALUES (501, 'b')");
          out.add(failureOf(() -> Arrays.toString(s.executeBatch())));
          if (!auto) d.rollback();
          out.add(rows(d, "SELECT count(*) FROM t WHERE v = 'b'"));
        }
      }
      return out;
    });
    scenario("a cursor by fetch size", () -> {
      c.setAutoCommit(false);
      try (PreparedStatement p = c.prepareStatement("SELECT generate_series(1, 1000)")) {
        p.setFetchSize(50);
        ResultSet r = p.executeQuery();
        long sum = 0;
        while (r.next()) sum += r.getInt(1);
        c.commit();
        return sum;
      } finally { c.setAutoCommit(true); }
    });
    scenario("an updatable, scrollable result", () -> {
      try (Statement s = c.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
        ResultSet r = s.executeQuery("SELECT i, v FROM t WHERE i < 5 ORDER BY i");
        r.last();
        r.updateString("v", "updated");
        r.updateRow();
        r.absolute(1);
        return r.getInt(1) + " " + rows(c, "SELECT v FROM t WHERE v = 'updated'");
      }
    });
    for (String mode : new String[] {"always", "conservative"}) {
      scenario("autosave=" + mode, () -> {
        try (Connection d = open("autosave", mode)) {
          d.setAutoCommit(false);
          update(d, "INSERT INTO t VALUES (?, 'autosave')", mode.length() + 600);
          String failed = failureOf(() -> update(d, "INSERT INTO t VALUES (1, 'dup')"));
          String after = failureOf(() -> rows(d, "SELECT count(*) FROM t WHERE v = 'autosave'"));
          String committed = failureOf(() -> { d.commit(); return "ok"; });
          return failed + " " + after + " " + committed;
        }
      });
    }
    scenario("savepoints", () -> {
      c.setAutoCommit(false);
      Savepoint a = c.setSavepoint("a");
      String failed = failureOf(() -> update(c, "INSERT INTO t VALUES (1, 'dup')"));
      c.rollback(a);
      update(c, "INSERT INTO t VALUES (700, 'kept')");
      Savepoint b = c.setSavepoint();
      c.releaseSavepoint(b);
      c.commit();
      c.setAutoCommit(true);
      return failed + " " + rows(c, "SELECT v FROM t WHERE i = 700");
    });
    scenario("commit of an aborted block", () -> {
      try (Connection d = open()) {
        d.setAutoCommit(false);
        failureOf(() -> rows(d, "SELECT 1/0"));
        return failureOf(() -> { d.commit(); return "ok"; });
      }
    });
    scenario("COPY in, out and cancelled", () -> {
      org.postgresql.copy.CopyManager m = c.unwrap(PGConnection.class).getCopyAPI();
      long in = m.copyIn("COPY t FROM STDIN", new StringReader("800\tcopied\n801\t\\N\n"));
      StringWriter out = new StringWriter();
      m.copyOut("COPY (SELECT * FROM t WHERE i IN (800, 801) ORDER BY i) TO STDOUT", out);
      org.postgresql.copy.CopyIn half = m.copyIn("COPY t FROM STDIN");
      half.writeToCopy("802\tno\n".getBytes(), 0, 7);
      half.cancelCopy();
      return in + out.toString() + failureOf(() -> m.copyIn("COPY t FROM STDIN", new StringReader("bad\n"))) + rows(c, "SELECT count(*) FROM t WHERE i = 802");
    });
    scenario("cancel and query timeout", () -> {
      try (Statement s = c.createStatement()) {
        Thread t = new Thread(() -> { try { Thread.sleep(300); s.cancel(); } catch (Exception e) { } });
        t.start();
        String cancelled = failureOf(() -> s.execute("SELECT pg_sleep(20)"));
        t.join();
        s.setQueryTimeout(1);
        return cancelled + " " + failureOf(() -> s.execute("SELECT pg_sleep(20)")) + " " + rows(c, "SELECT 'alive'");
      }
    });
    scenario("LISTEN and NOTIFY", () -> {
      execute(c, "LISTEN ch");
      try (Connection d = open()) { execute(d, "NOTIFY ch, 'payload'"); }
      org.postgresql.PGNotification[] n = c.unwrap(PGConnection.class).getNotifications(5000);
      return n == null ? "none" : n[0].getName() + " " + n[0].getParameter();
    });
    scenario("large objects", () -> {
      c.setAutoCommit(false);
      LargeObjectManager m = c.unwrap(PGConnection.class).getLargeObjectAPI();
      long oid = m.createLO();
      LargeObject o = m.open(oid, LargeObjectManager.READWRITE);
      o.write("hello large".getBytes());
      o.seek(6);
      String text = new String(o.read(5));
      o.close();
      m.delete(oid);
      c.commit();
      c.setAutoCommit(true);
      return text;
    });
    scenario("error fields", () -> {
      try { update(c, "INSERT INTO t VALUES (1, 'dup')"); return "none"; } catch (org.postgresql.util.PSQLException e) {
        return e.getSQLState() + " " + e.getServerErrorMessage().getConstraint() + " " + e.getServerErrorMessage().getDetail() + " " + failureOf(() -> rows(c, "SELECT ?,  nosuch", 1));
      }
    });
    scenario("functions, procedures, refcursors", () -> {
      execute(c, "CREATE FUNCTION give() RETURNS refcursor LANGUAGE plpgsql AS $$ DECLARE r refcursor; BEGIN OPEN r FOR SELECT 42; RETURN r; END $$");
      execute(c, "CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (n, 'p'); COMMIT; INSERT INTO t VALUES (n + 1, 'p'); ROLLBACK; END $$");
      c.setAutoCommit(false);
      List<List<Object>> given;
      try (CallableStatement s = c.prepareCall("{? = call give()}")) {
        s.registerOutParameter(1, Types.REF_CURSOR);
        s.execute();
        given = read((ResultSet) s.getObject(1));
      }
      c.commit();
      c.setAutoCommit(true);
      try (CallableStatement s = c.prepareCall("CALL steps(?)")) { s.setInt(1, 950); s.execute(); }
      return given + " " + rows(c, "SELECT i FROM t WHERE v = 'p'");
    });
    scenario("metadata", () -> {
      ResultSet r = c.getMetaData().getColumns(null, "public", "t", "%");
      List<String> names = new ArrayList<>();
      while (r.next()) names.add(r.getString("COLUMN_NAME") + ":" + r.getString("TYPE_NAME"));
      return names + " " + c.getMetaData().getDatabaseProductVersion() + " " + c.isValid(2) + " " + c.getWarnings();
    });
    scenario("targetServerType=primary", () -> {
      try (Connection d = open("targetServerType", "primary")) { return rows(d, "SELECT 1"); }
    });
    scenario("targetServerType=secondary", () -> {
      try (Connection d = open("targetServerType", "secondary")) { return rows(d, "SELECT 1"); }
    });
    scenario("every sslmode", () -> {
      List<Object> out = new ArrayList<>();
      for (String mode : new String[] {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}) {
        try (Connection d = open("sslmode", mode)) {
          out.add(mode + " " + rows(d, "SELECT 1"));
        } catch (SQLException e) {
          out.add(mode + " " + e.getSQLState());
        }
      }
      return out;
    });
    scenario("two-phase commit", () -> {
      try (Connection d = open()) {
        d.setAutoCommit(false);
        update(d, "INSERT INTO t VALUES (970, 'tpc')");
        return failureOf(() -> { execute(d, "PREPARE TRANSACTION 'one'"); d.setAutoCommit(true); execute(d, "COMMIT PREPARED 'one'"); return "ok"; });
      }
    });
    c.close();
  }

  static void stale() throws Exception {
    Connection c = open();
    execute(c, "CREATE TABLE IF NOT EXISTS stale (i int)");
    Connection idle = open();
    rows(idle, "SELECT 1");
    c.setAutoCommit(false);
    update(c, "INSERT INTO stale VALUES (1)");
    System.out.println("{\"raise\": true}");
    System.out.flush();
    new BufferedReader(new InputStreamReader(System.in)).readLine();
    scenario("commit of a stale generation", () -> { c.commit(); return "committed"; });
    scenario("write on an idle stale session", () -> "committed " + update(idle, "INSERT INTO stale VALUES (2)"));
    scenario("new connection of a stale generation", () -> "committed " + open());
  }

  public static void main(String[] args) throws Exception {
    if (args.length > 0 && args[0].equals("stale")) stale(); else scenarios();
  }
}
