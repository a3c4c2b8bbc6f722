/** For tests: statements in the extended protocol, as drivers send them. */
import { bind, describePortal, execute, parse, sync } from "../sidecar/wire/messages.ts";

/** Parse, Bind and Execute, by way of the unnamed statement or of one with a name. */
export const run = (sql: string, name = ""): Buffer[] => [parse(name, sql), bind("", name), execute("")];

/** The same with a Describe, as libpq does it for PQexecParams. */
export const runDescribed = (sql: string): Buffer[] => [parse("", sql), bind("", ""), describePortal(""), execute("")];

/** The statements one after the other, and one Sync. */
export const group = (...sqls: string[]): Buffer[] => [...sqls.flatMap((sql) => run(sql)), sync()];
