/**
 * Reads outside of a block that go as they are: bare, without the fence. One that turns out to write is sent again,
 * fenced, before the client has heard of it, and its text is remembered.
 *
 * Why that is safe, without the gate (INV-3): the session's default is READ ONLY (the seat belt), so PostgreSQL refuses
 * the write of a bare statement. The default is on when a message is decided on: nothing is in flight then, so whatever
 * has opened it was reported, and closed again. And a raise ends every session of an older generation before it
 * commits, so that not even a side effect of a read begins later. Nothing is done twice by the repetition: what the
 * first run did was rolled back.
 *
 * Does NOT make a statement a read that only looks like one: whatever a view, an operator or a policy calls can swallow
 * the refusal (docs/ways-around.md).
 */

/** A request that is larger is fenced at once, and answers that are larger are not held back. */
export const BARE_BYTES_MAX = 64 * 1024;
const BYTES_FIRST = 1024;

/** Groups that go fenced after one had to wait for the answer of a bare one: the client pipelines, fenced ones need not wait. */
const GROUPS_AFTER_WAIT = 256;

/** Texts that turned out to write, of all sessions of a proxy. Bounded: one that is forgotten is only tried once more. */
export class KnownWriters {
  readonly #fingerprints = new Int32Array(4096);

  add(fingerprint: number): void {
    this.#fingerprints[fingerprint & 4095] = fingerprint;
  }

  has(fingerprint: number): boolean {
    return this.#fingerprints[fingerprint & 4095] === fingerprint;
  }
}

/** Names of prepared statements that are reads. A name that is taken for one and is none is safe: PostgreSQL refuses. */
class ReadNames {
  #hashes: Int32Array | undefined;
  #fingerprints: Int32Array | undefined;

  /** `fingerprint`: 0 when it is none. */
  note(bytes: Buffer, start: number, end: number, fingerprint: number): void {
    if (fingerprint === 0 && !this.#hashes) return;
    this.#hashes ??= new Int32Array(256);
    this.#fingerprints ??= new Int32Array(256);
    const hash = nameHash(bytes, start, end);
    if (fingerprint === 0 && this.#hashes[hash & 255] !== hash) return;
    this.#hashes[hash & 255] = hash;
    this.#fingerprints[hash & 255] = fingerprint;
  }

  find(bytes: Buffer, start: number, end: number): number {
    const hash = nameHash(bytes, start, end);
    if (this.#hashes?.[hash & 255] !== hash) return 0;
    return this.#fingerprints?.[hash & 255] ?? 0;
  }
}

function nameHash(bytes: Buffer, start: number, end: number): number {
  let hash = 0x811c9dc5 | 0;
  for (let at = start; at < end; at++) hash = Math.imul(hash ^ (bytes[at] as number), 0x01000193);
  return hash;
}

/** Bytes that are kept for a moment, in a buffer that is used again. */
class Kept {
  bytes = Buffer.alloc(0);
  length = 0;

  add(bytes: Buffer, start: number, end: number): void {
    const length = this.length + (end - start);
    if (length > this.bytes.length) {
      const grown = Buffer.allocUnsafe(Math.max(BYTES_FIRST, 2 * this.bytes.length, length));
      this.bytes.copy(grown, 0, 0, this.length);
      this.bytes = grown;
    }
    bytes.copy(this.bytes, this.length, start, end);
    this.length = length;
  }
}

export class Bare {
  readonly writers: KnownWriters;
  readonly names = new ReadNames();
  /** The group that the client is sending goes without the fence. */
  inGroup = false;
  /**
   * Of a bare request in flight. `asked`: the client has heard nothing of its answers; `answered`: it has; `refused`:
   * PostgreSQL refused it, or may have, and it is sent again at the ReadyForQuery; `again`: it was, fenced.
   */
  phase: "none" | "asked" | "answered" | "refused" | "again" = "none";
  /** The request as the client sent it. */
  readonly request = new Kept();
  /** Its first answers. */
  readonly answers = new Kept();
  /** Its Parse was done, which no error undoes. */
  parsed = false;
  /** The client wants it cancelled. */
  cancelled = false;
  fingerprint = 0;
  #fencedGroups = 0;

  constructor(writers: KnownWriters) {
    this.writers = writers;
  }

  /** It may have to be sent again: nothing of the client may overtake it, its farewell neither. */
  get unheard(): boolean {
    return this.phase === "asked" || this.phase === "refused";
  }

  /** Whether the client pipelines, so that a bare group would be in the way of the next one; asked once per group. */
  get inTheWay(): boolean {
    if (this.#fencedGroups === 0) return false;
    this.#fencedGroups--;
    return true;
  }

  /** The request is sent as it is. */
  begin(fingerprint: number, bytes: Buffer, start: number, end: number): void {
    this.phase = "asked";
    this.request.length = 0;
    this.request.add(bytes, start, end);
    this.answers.length = 0;
    this.parsed = false;
    this.cancelled = false;
    this.fingerprint = fingerprint;
  }

  /** Something of the client waits behind it. */
  waitedFor(): void {
    if (this.phase !== "none") this.#fencedGroups = GROUPS_AFTER_WAIT;
  }

  /** Holds an answer back; false: it is too large. */
  hold(bytes: Buffer, start: number, end: number): boolean {
    if (this.answers.length + (end - start) > BARE_BYTES_MAX) return false;
    this.answers.add(bytes, start, end);
    return true;
  }

  /** It wanted to write, or may have. True: it can be sent again. */
  refuse(): boolean {
    if (this.phase === "answered") {
      this.writers.add(this.fingerprint);
      return false;
    }
    this.phase = "refused";
    return true;
  }

  /** It has its ReadyForQuery. What fails without the fence and succeeds behind it is a writer. */
  end(failed: boolean): void {
    if (this.phase === "again" && !failed) this.writers.add(this.fingerprint);
    this.phase = "none";
  }
}
