/** Commands that people paste out of a message. What a database or a name holds is never more than one word of them. */

/** `text` as one word of a POSIX shell, quoted only where it has to be. */
export function shellWord(text: string): string {
  return /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
