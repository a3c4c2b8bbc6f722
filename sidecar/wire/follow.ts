/**
 * What an Execute does to the transaction and the session, as far as one can tell before its answer.
 *
 * Does NOT last where it may be wrong: the next group waits for the answer then (`unpredictable`).
 */
import type { Core } from "./core.ts";
import { FAILED, IDLE, IN_BLOCK } from "./messages.ts";
import type { Statement } from "./statements.ts";

/** The client executes it; undefined: a plain statement. */
export function follow(core: Core, statement: Statement | undefined): void {
  core.groupRuns = true;
  if (statement?.doubtful || statement?.kind === "unknown") {
    core.uncertain = true;
    core.groupCommits = true;
    core.commitInFlight = true;
  }
  if (statement === undefined) return followWork(core);
  if (statement.kind === "inBlock") return;
  core.unpredictable = true;
  switch (statement.kind) {
    case "copy":
      core.groupCopies = true;
      return followWork(core);
    case "begin":
    case "setTransaction":
      // Keeps what was entered earlier in the group: the implicit transaction becomes the block.
      if (statement.kind === "begin" && core.status === IDLE) core.status = IN_BLOCK;
      core.readOnly = statement.readOnly ?? core.readOnly;
      return;
    case "setDefault":
      core.readOnlyDefault = statement.readOnly ?? core.readOnlyDefaultAtStart;
      return;
    case "commit":
    case "rollback":
      followEnd(core, statement);
      return;
    case "unknown":
      core.groupCopies ||= core.copyNamed;
      core.entered = false;
      if (core.status === FAILED) core.status = IN_BLOCK;
      return;
    case "rollbackTo":
      // A savepoint older than the fence gives the lock back; entering again is harmless.
      core.entered = false;
      if (core.status === FAILED) core.status = IN_BLOCK;
      return;
    case "noBlock":
    case "procedure":
      core.commitInFlight = true;
      return;
    case "session":
      if (statement.words.startsWith("D")) core.prepared = 0;
      if (statement.words === "DISCARD ALL") core.readOnlyDefault = core.readOnlyDefaultAtStart;
      return;
    default:
      return;
  }
}

/** Outside of a block the end of the group commits it. */
function followWork(core: Core): void {
  core.groupCommits ||= core.status === IDLE && !core.bare.inGroup;
}

function followEnd(core: Core, statement: Statement): void {
  // Outside of a block, too: there it commits what the group has done so far.
  if (statement.kind === "commit") core.commitInFlight = true;
  if (statement.kind === "commit" && core.status !== FAILED) {
    core.readOnlyDefaultCommitted = core.readOnlyDefault;
    core.readOnlyDefaultsInFlight.push(core.readOnlyDefault);
  } else core.readOnlyDefault = core.readOnlyDefaultCommitted;
  core.entered = false;
  if (!statement.chain) core.readOnly = core.readOnlyDefault;
  core.status = statement.chain && core.status !== IDLE ? IN_BLOCK : IDLE;
}
