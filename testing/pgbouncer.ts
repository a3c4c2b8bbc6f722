/** Debian's PgBouncer in front of a server, for what is tested with it or compared with it. */
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { DatabaseAddress } from "../fence/database.ts";
import { freePort } from "./postgres.ts";
import { type Serving, startServing } from "./serving.ts";

export interface Pooler extends Serving {
  readonly port: number;
}

export const PGBOUNCER = "/usr/sbin/pgbouncer";
const NOBODY = 65534;

/** Why no PgBouncer can be started here; null when one can. */
export const pgbouncerMissing = (): string | null =>
  existsSync(PGBOUNCER) ? null : "PgBouncer is not installed (apt-get install pgbouncer)";

/** `settings` are those of its section [pgbouncer]. Everybody is let in as the address's user. */
export async function startPgbouncer(
  address: DatabaseAddress,
  settings: Readonly<Record<string, string | number>>,
): Promise<Pooler> {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-pgbouncer-"));
  const port = await freePort();
  const { host, port: serverPort, database, user } = address;
  const all = {
    listen_addr: "127.0.0.1",
    listen_port: port,
    unix_socket_dir: "",
    auth_type: "any",
    ...settings,
  };
  const lines = [
    "[databases]",
    `${database} = host=${host} port=${serverPort} dbname=${database} user=${user}`,
    "[pgbouncer]",
    ...Object.entries(all).map(([name, value]) => `${name} = ${value}`),
  ];
  const file = join(dir, "pgbouncer.ini");
  writeFileSync(file, `${lines.join("\n")}\n`);
  chmodSync(dir, 0o755);
  // It refuses to run as root.
  const identity = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};
  const serving = await startServing(PGBOUNCER, [file], { ready: /process up/, ...identity });
  return {
    ...serving,
    port,
    stop: async () => {
      await serving.stop();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
