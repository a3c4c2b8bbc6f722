/**
 * Closes a generation: a raise to nobody, for when there is no successor. Once it has committed no transaction of it commits
 * (INV-3), and no session of it is admitted, until somebody raises a higher one.
 */
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { type MoveOptions, moveFence } from "./move.ts";

export interface Closed {
  /** Server sessions of this generation or older ones that were ended. */
  readonly sessionsEnded: number;
  readonly tookMs: number;
}

/**
 * Only the generation in force, by its own holder; again is success. Returns within `drainMs` plus a few seconds, or throws
 * a FenceError: LF001, another one has raised; LF003, not in this history; LF004 names who blocks.
 */
export async function closeFence(
  address: DatabaseAddress,
  identity: FenceIdentity,
  options: MoveOptions,
): Promise<Closed> {
  const values = [identity.fenceName, identity.generation, identity.holder];
  const { sessionsEnded, tookMs } = await moveFence(address, identity, options, {
    doing: "close",
    saying: "closing the fence",
    begin: { text: "SELECT id FROM fence.close_begin($1, $2, $3)", values },
    move: { text: "SELECT * FROM fence.close($1, $2, $3)", values },
    ending: {
      text: `SELECT id, $2::bigint + 1 AS below, generation = $2 AND holder = $3 AS may
        FROM fence.job WHERE name = $1`,
      values,
    },
  });
  return { sessionsEnded, tookMs };
}
