/**
 * What the two directions of a session share: the transaction's state as far as it is known, and the requests in
 * flight. Front (client's messages) and Back (server's messages) both read and write it; it does nothing by itself.
 */

import type { FenceIdentity } from "../../fence/database.ts";
import { bracketSql, enterLockSql, enterSelectSql } from "../../fence/enter.ts";
import type { PermitState } from "../../lease/permit.ts";
import { Bare, type KnownWriters } from "./bare.ts";
import type { Counters } from "./counters.ts";
import type { WireError } from "./errors.ts";
import type { Sink } from "./framer.ts";
import { bind, closePortal, closeStatement, execute, IDLE, parse, sync } from "./messages.ts";
import { Names, OWN_NAME_PREFIX } from "./names.ts";
import { ReplyQueue } from "./replies.ts";
import type { Verdict } from "./verdict.ts";

/** The outside of a session: sockets, permit and fence row. */
export interface SessionHost {
  readonly toClient: Sink;
  readonly toServer: Sink;
  readonly counters: Counters;
  /** Read at each message that would start or commit protected work (INV-5). */
  permit(): PermitState;
  /** How long ago the permit's deadline passed, in ms. */
  permitEndedMsAgo(): number;
  /**
   * Reads the fence row over a fresh connection; `done` is called once, later. `ended`: the server session was ended
   * from outside, as a raise does just before it commits.
   */
  verdict(ended: boolean, done: (verdict: Verdict) => void): void;
  /** The server session is over or no longer wanted. */
  closeServer(): void;
  /** What was pushed goes out, then both connections end. */
  end(): void;
}

/**
 * Statements of the proxy between two groups of the client, in a group of their own. The client's unnamed statement
 * outlives them, which a simple query would drop; and there is a Sync behind them, without which PostgreSQL 18 would
 * lose what a simple query commits next.
 */
export interface ApartGroup {
  readonly bytes: Buffer;
  readonly statements: number;
}

/** The bytes that enter the gate, made once per session. */
export interface FenceBytes {
  /** In front of a simple query, in a transaction that is to write. */
  readonly writableText: Buffer;
  /** The same in a transaction that stays read-only. */
  readonly readOnlyText: Buffer;
  /** (Re-)prepare the statements below, whether they exist or not: Close, Parse. */
  readonly prepareWritable: Buffer;
  /** Takes a snapshot, so it comes after the transaction was made writable. */
  readonly prepareEnter: Buffer;
  readonly prepareEnterInBlock: Buffer;
  readonly prepareReadOnly: Buffer;
  /** Bind, Execute of `SET transaction_read_only=off`. */
  readonly makeWritable: Buffer;
  /** Bind, Execute of the gate's row lock. */
  readonly enter: Buffer;
  /** `SET transaction_read_only=on`, in a portal of its own: behind the row lock, which no read-only transaction may take. */
  readonly makeReadOnlyAnywhere: Buffer;
  /** The same inside a block, where the client's unnamed portal may be alive: Bind, Execute, Close of a named one. */
  readonly makeWritableInBlock: Buffer;
  readonly enterInBlock: Buffer;
  /** Inside or outside of a block, where that is not known: the row lock, in a portal of its own. */
  readonly enterAnywhere: Buffer;
  /** Around a statement that no transaction can hold the gate for (fence/enter.ts, bracketSql). */
  readonly bracketLock: ApartGroup;
  readonly bracketCheck: ApartGroup;
  /** The same, and opens the read-only default. */
  readonly bracketCheckWritable: ApartGroup;
  /** Puts the default back on, gives the lock back. */
  readonly bracketClose: ApartGroup;
  readonly defaultReadOnly: ApartGroup;
}

/** `suffix`: random, so that SQL cannot replace the session's prepared statements without looking for their names. */
export function fenceBytes(jobId: number, identity: FenceIdentity, suffix: string): FenceBytes {
  const [writableName = "", enterName = "", lockName = "", readOnlyName = "", apartName = ""] = [..."welra"].map(
    (letter) => `${OWN_NAME_PREFIX}${letter}_${suffix}`,
  );
  const { generation } = identity;
  const lock = `${enterLockSql(jobId, generation)};`;
  const bracket = bracketSql(jobId, identity);
  return {
    bracketLock: apart(apartName, bracket.lock),
    bracketCheck: apart(apartName, bracket.check),
    bracketCheckWritable: apart(apartName, bracket.check, "SET default_transaction_read_only=off"),
    bracketClose: apart(apartName, "SET default_transaction_read_only=on", bracket.unlock),
    defaultReadOnly: apart(apartName, "SET default_transaction_read_only=on"),
    writableText: Buffer.from(`SET TRANSACTION READ WRITE;${lock}`),
    readOnlyText: Buffer.from(lock),
    // Not SET TRANSACTION READ WRITE: outside of a block it warns, once per transaction, in the server's log too.
    prepareWritable: prepared(writableName, "SET transaction_read_only=off"),
    prepareEnter: prepared(enterName, enterSelectSql(jobId, generation)),
    // In a block LOCK is allowed on every version, in a read-only one too, and takes no snapshot.
    prepareEnterInBlock: prepared(lockName, enterLockSql(jobId, generation)),
    prepareReadOnly: prepared(readOnlyName, "SET transaction_read_only=on"),
    makeReadOnlyAnywhere: runInOwnPortal(readOnlyName),
    makeWritable: Buffer.concat([bind("", writableName), execute("")]),
    enter: Buffer.concat([bind("", enterName), execute("")]),
    makeWritableInBlock: runInOwnPortal(writableName),
    enterInBlock: runInOwnPortal(lockName),
    enterAnywhere: runInOwnPortal(enterName),
  };
}

/** A simple query in flight; there is at most one. */
export interface QueryInFlight {
  /** CommandCompletes of the fence still to be swallowed before the client's next. */
  skipLeft: number;
  /** CommandCompletes of the client so far. */
  completed: number;
  /** Next of `injections`. */
  next: number;
  readonly injections: readonly {
    readonly ordinal: number;
    readonly skips: number;
    readonly position: number;
    readonly characters: number;
  }[];
}

/** What entering outside of a block needs: to make writable, the row lock, to make read-only again. */
export const SELECT_PREPARED = 1;
/** What entering in a block needs. Apart, as preparing the row lock counts as a query: no isolation level could follow. */
export const LOCK_PREPARED = 2;

export interface CoreOptions {
  readonly identity: FenceIdentity;
  readonly fence: FenceBytes;
  readonly host: SessionHost;
  /** The client asked for read-only transactions in its startup message. */
  readonly readOnlyDefault: boolean;
  /** Of the proxy. */
  readonly writers: KnownWriters;
}

export class Core {
  readonly identity: FenceIdentity;
  readonly fence: FenceBytes;
  readonly host: SessionHost;
  readonly replies = new ReplyQueue();

  /** Transaction status at the client's place in the stream: the server's last word, and what was executed since. */
  status = IDLE;
  /** The open transaction holds the lock on the gate. */
  entered = false;
  /** The open transaction is read-only by the client's own words. */
  readOnly = false;
  /** The client's own default for new transactions; the server's is always on (a seat belt, not the fence). */
  readOnlyDefault = false;
  /** What a ROLLBACK brings it back to, if everything in flight succeeds. */
  readOnlyDefaultCommitted = false;
  /** The same by the server's answers. */
  readOnlyDefaultKept = false;
  /** What each COMMIT in flight keeps. */
  readonly readOnlyDefaultsInFlight: boolean[] = [];
  /** What RESET brings it back to. */
  readonly readOnlyDefaultAtStart: boolean;
  /** Something was answered with an error since the session was last idle. */
  hasFailed = false;
  /** What the client was last told of default_transaction_read_only. */
  readOnlyDefaultTold = false;
  /** The server reported default_transaction_read_only=off: put it back on before anything else. */
  seatBeltOpen = false;

  /** Extended messages were sent since the last Sync. */
  inGroup = false;
  /** The group executes something outside of a block: its Sync commits. */
  groupCommits = false;
  /** The group has executed something of the client. */
  groupRuns = false;
  /** The group has bound a portal: the unnamed one may be the client's. */
  groupBinds = false;
  /** The group has executed something that may or may not have ended, begun or left the transaction. */
  uncertain = false;
  /** Something in flight changes the transaction's state, or the session's: the next group waits for its answer. */
  unpredictable = false;
  /** A commit is in flight: without its answer the outcome is unknown (INV-10). */
  commitInFlight = false;
  /** After an error the server ignores the client's messages up to Sync. */
  discarding = false;
  /** After our refusal the client's messages up to Sync are left out. */
  dropping = false;
  /** The group has executed what may be a COPY FROM STDIN, whose end the client has not sent (copying.ts). */
  groupCopies = false;
  /** Syncs since its data, of either protocol: ignored while the server waits for data, answered if the COPY fails. */
  copySyncs = 0;
  /** A COPY was prepared under a name: an EXECUTE may be one. */
  copyNamed = false;
  /** The server waits for COPY data of an Execute, whose end the client has not sent. */
  copyIn = false;
  /** The same of a simple query. */
  copyInSimple = false;
  /** Ends of COPY that the client sent before the server asked for the data of its simple query. */
  copyEndsAhead = 0;
  /** A FunctionCall, and in front of it the fence as extended messages that no Sync of the client need follow. */
  entersFunction = false;
  /** A cancel request is under way: what comes next must not be hit by it. */
  cancelling = false;

  /**
   * Around a statement outside of transactions. `opening`: its own statements are in flight, the client's message is
   * held; `open`: the message goes bare, and the bracket closes behind it.
   */
  bracket: "none" | "opening" | "open" = "none";
  /** Its closing failed: to be done again before anything else. */
  bracketStuck = false;
  /** Why the bracket did not open. */
  bracketFailure: Buffer | undefined;

  query: QueryInFlight | undefined;
  /** The refusal whose error goes to the client in place of the server's. */
  refusing: WireError | undefined;
  /** It was sent as the CopyFail of the client's own COPY. */
  refusesCopy = false;
  /** A refusal failed the open block: its COMMIT must not be answered with a silent ROLLBACK (INV-10). */
  refusedInBlock: WireError | undefined;

  /** Which of the proxy's statements are prepared in this session, as a sum of the constants above. */
  prepared = 0;
  readonly names = new Names();
  readonly bare: Bare;

  standardStrings = true;

  /** Ownership or the server session ends: nothing of the client is taken any more until the reason is known. */
  ending = false;
  /** The server's connection has ended, behind what is still to be read of it. */
  serverGone = false;
  /** The client has said goodbye: nothing is to be told to it. */
  terminated = false;
  /** The reason, kept for the client's next message. */
  epitaph: Buffer | undefined;

  constructor(options: CoreOptions) {
    this.bare = new Bare(options.writers);
    this.identity = options.identity;
    this.fence = options.fence;
    this.host = options.host;
    this.readOnlyDefault = options.readOnlyDefault;
    this.readOnlyDefaultCommitted = options.readOnlyDefault;
    this.readOnlyDefaultKept = options.readOnlyDefault;
    this.readOnlyDefaultAtStart = options.readOnlyDefault;
    this.readOnlyDefaultTold = options.readOnlyDefault;
    this.readOnly = options.readOnlyDefault;
  }
}

function prepared(name: string, sql: string): Buffer {
  return Buffer.concat([closeStatement(name), parse(name, sql)]);
}

/** An error leaves the statement behind, so it is closed in front, too. */
function apart(name: string, ...statements: readonly string[]): ApartGroup {
  const run = (sql: string): Buffer[] => [prepared(name, sql), bind("", name), execute(""), closeStatement(name)];
  return { bytes: Buffer.concat([...statements.flatMap(run), sync()]), statements: statements.length };
}

function runInOwnPortal(statement: string): Buffer {
  return Buffer.concat([bind(statement, statement), execute(statement), closePortal(statement)]);
}
