/** What a hint says to whoever runs a command: the address is in no Secret of a job, and nobody tries again for him. */
export function byHand(hint: string): string {
  return hint
    .replace("in the job's Secret", "in the database URL")
    .replace(/\b(it|the raise|the close) is tried again by itself/, "run this command again")
    .replace(/\b(It|The raise|The close) is tried again by itself/, "Run this command again");
}
