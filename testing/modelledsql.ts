/**
 * SQL as the modelled server (testing/modelledpostgres.ts) reads it: a closed set of statements, everything else is a
 * syntax error.
 *
 * Does NOT share a line with the wire's lexer: the two are to check each other.
 */

type Wordless =
  | "write"
  /** From a view that calls a function that writes: looks like a read. */
  | "writingRead"
  | "copyIn"
  /** COPY FROM STDIN into what cannot be copied to: fails behind the CopyInResponse, before anything is read. */
  | "copyInFails"
  | "read"
  | "lock"
  | "procedure"
  | "outsideBlocks"
  | "twoPhase"
  | "fails";

export type ModelledStatement =
  | { readonly kind: "begin"; readonly readOnly?: boolean }
  | { readonly kind: "commit" | "rollback"; readonly chain: boolean }
  | { readonly kind: "savepoint" | "rollbackTo" | "release"; readonly name: string }
  /** READ WRITE or READ ONLY of the running transaction; neither: its isolation level. */
  | { readonly kind: "setTransaction"; readonly readOnly?: boolean; readonly inQuery?: boolean }
  /** undefined: back to the value of the session's start. */
  | { readonly kind: "setDefault"; readonly readOnly?: boolean; readonly local: boolean }
  | { readonly kind: "setStandardStrings"; readonly on: boolean }
  | { readonly kind: "enterLock" | "enterSelect" }
  | { readonly kind: "bracketLock" | "bracketUnlock" | "checkOwner" }
  | { readonly kind: "refuse"; readonly code: string }
  | { readonly kind: Wordless }
  | { readonly kind: "prepare"; readonly name: string; readonly statement: ModelledStatement }
  | { readonly kind: "execute"; readonly name: string }
  /** undefined: ALL. */
  | { readonly kind: "deallocate"; readonly name?: string }
  | { readonly kind: "discardAll" | "resetAll" | "show" | "session" };

type Make = (match: RegExpExecArray) => ModelledStatement | undefined;

const readOnlyOf = (words: string | undefined): { readOnly?: boolean } => {
  const last = /READ (ONLY|WRITE)(?!.*READ (?:ONLY|WRITE))/.exec(words ?? "");
  return last ? { readOnly: last[1] === "ONLY" } : {};
};
const LEVEL = "ISOLATION LEVEL (?:READ COMMITTED|REPEATABLE READ|SERIALIZABLE)";
const MODES = `((?: ?,? ?(?:READ ONLY|READ WRITE|${LEVEL}))*)`;
const ON = "(?:ON|'on'|TRUE|1)";
const OFF = "(?:OFF|'off'|FALSE|0)";
const kind = (word: Wordless) => (): ModelledStatement => ({ kind: word });

/** Over the statement's tokens in upper case with single spaces; strings as they are. */
const GRAMMAR: readonly (readonly [RegExp, Make])[] = [
  [new RegExp(`^BEGIN(?: WORK| TRANSACTION)?${MODES}$`), (m) => ({ kind: "begin", ...readOnlyOf(m[1]) })],
  [new RegExp(`^START TRANSACTION${MODES}$`), (m) => ({ kind: "begin", ...readOnlyOf(m[1]) })],
  [/^(?:COMMIT|END)(?: WORK| TRANSACTION)?( AND CHAIN| AND NO CHAIN)?$/, (m) => ends("commit", m[1])],
  [/^(?:ROLLBACK|ABORT)(?: WORK| TRANSACTION)?( AND CHAIN| AND NO CHAIN)?$/, (m) => ends("rollback", m[1])],
  [/^SAVEPOINT (\w+)$/, (m) => ({ kind: "savepoint", name: m[1] ?? "" })],
  [/^ROLLBACK (?:WORK |TRANSACTION )?TO (?:SAVEPOINT )?(\w+)$/, (m) => ({ kind: "rollbackTo", name: m[1] ?? "" })],
  [/^RELEASE (?:SAVEPOINT )?(\w+)$/, (m) => ({ kind: "release", name: m[1] ?? "" })],
  [/^(?:PREPARE TRANSACTION|COMMIT PREPARED|ROLLBACK PREPARED) '\w+'$/, kind("twoPhase")],
  [
    new RegExp(`^SET (?:LOCAL |SESSION )?TRANSACTION${MODES}$`),
    (m) => ({ kind: "setTransaction", ...readOnlyOf(m[1]) }),
  ],
  [setting("TRANSACTION_READ_ONLY", OFF), () => ({ kind: "setTransaction", readOnly: false })],
  [setting("TRANSACTION_READ_ONLY", ON), () => ({ kind: "setTransaction", readOnly: true })],
  [setting("DEFAULT_TRANSACTION_READ_ONLY", OFF), (m) => ({ kind: "setDefault", readOnly: false, local: isLocal(m) })],
  [setting("DEFAULT_TRANSACTION_READ_ONLY", ON), (m) => ({ kind: "setDefault", readOnly: true, local: isLocal(m) })],
  [setting("DEFAULT_TRANSACTION_READ_ONLY", "DEFAULT"), (m) => ({ kind: "setDefault", local: isLocal(m) })],
  [
    /^SET SESSION CHARACTERISTICS AS TRANSACTION READ (ONLY|WRITE)$/,
    (m) => {
      return { kind: "setDefault", readOnly: m[1] === "ONLY", local: false };
    },
  ],
  [
    /^SELECT SET_CONFIG \( 'default_transaction_read_only' , 'off' , FALSE \)$/,
    () => {
      return { kind: "setDefault", readOnly: false, local: false };
    },
  ],
  [
    /^SELECT SET_CONFIG \( 'transaction_read_only' , 'off' , TRUE \)$/,
    () => {
      return { kind: "setTransaction", readOnly: false, inQuery: true };
    },
  ],
  [/^RESET DEFAULT_TRANSACTION_READ_ONLY$/, () => ({ kind: "setDefault", local: false })],
  [setting("STANDARD_CONFORMING_STRINGS", ON), () => ({ kind: "setStandardStrings", on: true })],
  [setting("STANDARD_CONFORMING_STRINGS", OFF), () => ({ kind: "setStandardStrings", on: false })],
  [/^SET (?:LOCAL |SESSION )?\w+ (?:=|TO) (?:\w+|'[^']*')$/, () => ({ kind: "session" })],
  [/^RESET ALL$/, () => ({ kind: "resetAll" })],
  [/^SHOW (?:\w+|TRANSACTION ISOLATION LEVEL)$/, () => ({ kind: "show" })],
  [/^(?:LISTEN|UNLISTEN) \w+$/, () => ({ kind: "session" })],
  [/^DISCARD ALL$/, () => ({ kind: "discardAll" })],
  [/^DEALLOCATE (?:PREPARE )?ALL$/, () => ({ kind: "deallocate" })],
  [/^DEALLOCATE (?:PREPARE )?(\w+)$/, (m) => ({ kind: "deallocate", name: m[1] ?? "" })],
  [
    /^PREPARE (\w+) AS ((?:SELECT|INSERT|UPDATE|DELETE|VALUES)\b.*)$/,
    (m) => {
      const statement = recognise(m[2] ?? "");
      return statement && { kind: "prepare", name: m[1] ?? "", statement };
    },
  ],
  [/^EXECUTE (\w+)$/, (m) => ({ kind: "execute", name: m[1] ?? "" })],
  [/^LOCK TABLE FENCE \. GATE_1_7 IN ROW SHARE MODE$/, () => ({ kind: "enterLock" })],
  [/^SELECT FROM FENCE \. GATE_1_7 FOR SHARE$/, () => ({ kind: "enterSelect" })],
  [/^SELECT PG_CATALOG \. PG_ADVISORY_LOCK_SHARED \(.*\)$/, () => ({ kind: "bracketLock" })],
  [/^SELECT PG_CATALOG \. PG_ADVISORY_UNLOCK_SHARED \(.*\)$/, () => ({ kind: "bracketUnlock" })],
  [/^SELECT FENCE \. CHECK_OWNER \(.*\)$/, () => ({ kind: "checkOwner" })],
  [/^SELECT FENCE \. REFUSE \( '(\w+)' .*\)$/, (m) => ({ kind: "refuse", code: m[1] ?? "" })],
  [/^LOCK TABLE \w+$/, kind("lock")],
  [/^COPY V FROM STDIN$/, kind("copyInFails")],
  [/^COPY \w+ FROM STDIN$/, kind("copyIn")],
  [/^SELECT \w+ \/ 0$/, kind("fails")],
  [/^SELECT WRITES \( \)$/, kind("writingRead")],
  [/^SELECT A FROM V$/, kind("writingRead")],
  [/^(?:EXPLAIN ANALYZE )?(?:INSERT INTO|UPDATE|DELETE FROM) \w+\b.*$/, kind("write")],
  [/^WITH \w+ AS \( (?:INSERT|UPDATE|DELETE) .*\) SELECT \w+$/, kind("write")],
  [/^SELECT .* INTO \w+$/, kind("write")],
  [/^CREATE (?:TABLE|FUNCTION|VIEW) .*$/, kind("write")],
  [/^(?:SELECT|VALUES|TABLE)\b.*$/, kind("read")],
  [/^(?:CALL \w+ \( \)|DO '.*')$/s, kind("procedure")],
  [
    /^(?:VACUUM(?: \w+)?|CREATE DATABASE \w+|CREATE INDEX CONCURRENTLY .*|REINDEX DATABASE \w+)$/,
    kind("outsideBlocks"),
  ],
];

function setting(name: string, value: string): RegExp {
  return new RegExp(`^SET (LOCAL |SESSION )?${name} (?:=|TO) ${value}$`);
}

const isLocal = (match: RegExpExecArray): boolean => match[1] === "LOCAL ";

const ends = (what: "commit" | "rollback", chain: string | undefined): ModelledStatement => ({
  kind: what,
  chain: chain === " AND CHAIN",
});

/** The statements of a text; undefined when any of it is not understood: then PostgreSQL runs none of it. */
export function readSql(text: string, standardStrings: boolean): ModelledStatement[] | undefined {
  const texts = tokens(text, standardStrings);
  if (!texts) return undefined;
  const statements: ModelledStatement[] = [];
  for (const words of texts) {
    const statement = recognise(words);
    if (!statement) return undefined;
    statements.push(statement);
  }
  return statements;
}

function recognise(words: string): ModelledStatement | undefined {
  for (const [pattern, make] of GRAMMAR) {
    const match = pattern.exec(words);
    if (match) return make(match);
  }
  return undefined;
}

const TOKEN =
  /[ \t\n\r\f\v]+|--[^\n\r]*|(\/\*)|[eE]'((?:[^'\\]|\\[\s\S]|'')*)'|'|\$(?:[A-Za-z_]\w*)?\$|([A-Za-z_][\w$]*)|(\d+)|([=,.()+*<>/;])/y;
const STANDARD = /'((?:[^']|'')*)'/y;
const ESCAPING = /'((?:[^'\\]|\\[\s\S]|'')*)'/y;

/** A token and where it ends; without a word: blank. */
interface Token {
  readonly word?: string;
  readonly end: number;
}

/** Tokens of each statement that is not empty, joined by spaces; undefined when the text cannot be cut. */
function tokens(text: string, standardStrings: boolean): string[] | undefined {
  const statements: string[] = [];
  let words: string[] = [];
  let open = 0;
  for (let at = 0; at < text.length; ) {
    const token = tokenAt(text, at, standardStrings);
    if (!token) return undefined;
    at = token.end;
    open += token.word === "(" ? 1 : token.word === ")" ? -1 : 0;
    if (open < 0 || (open > 0 && (token.word === ";" || at >= text.length))) return undefined;
    if (token.word !== undefined && token.word !== ";") words.push(token.word);
    if (words.length > 0 && (token.word === ";" || at >= text.length)) {
      statements.push(words.join(" "));
      words = [];
    }
  }
  return statements;
}

function tokenAt(text: string, at: number, standardStrings: boolean): Token | undefined {
  const found = matchAt(TOKEN, text, at);
  if (!found) return undefined;
  const [whole, comment, escaped, word, number, sign] = found;
  const end = at + whole.length;
  if (comment !== undefined) return commentAt(text, end);
  if (whole === "'") {
    const string = matchAt(standardStrings ? STANDARD : ESCAPING, text, at);
    return string ? { word: `'${string[1]}'`, end: at + string[0].length } : undefined;
  }
  if (whole.startsWith("$")) {
    const close = text.indexOf(whole, end);
    return close === -1 ? undefined : { word: `'${text.slice(end, close)}'`, end: close + whole.length };
  }
  const said = escaped === undefined ? (word?.toUpperCase() ?? number ?? sign) : `'${escaped}'`;
  return said === undefined ? { end } : { word: said, end };
}

function matchAt(pattern: RegExp, text: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** Comments nest. `from`: behind the first opening. */
function commentAt(text: string, from: number): Token | undefined {
  let depth = 1;
  for (let at = from; at < text.length; ) {
    const two = text.slice(at, at + 2);
    if (two === "/*") depth++;
    if (two === "*/") depth--;
    at += two === "/*" || two === "*/" ? 2 : 1;
    if (depth === 0) return { end: at };
  }
  return undefined;
}
