/** What a run of everything has finished, in a file that outlives a run that was cut off. */
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";

export class Progress {
  readonly #file: string;

  constructor(file: string) {
    this.#file = file;
  }

  /** Nothing is finished. */
  begin(): void {
    writeFileSync(this.#file, "");
  }

  has(name: string): boolean {
    return existsSync(this.#file) && readFileSync(this.#file, "utf8").split("\n").includes(name);
  }

  add(name: string): void {
    appendFileSync(this.#file, `${name}\n`);
  }
}
