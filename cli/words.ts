/** Words of the command line that must not be empty: what a shell's variable that is not set leaves. */
import { InvalidArgumentError } from "commander";

/** The name of a fence, of a role, of a holder. */
export function word(text: string): string {
  if (text === "") throw new InvalidArgumentError("it is empty");
  return text;
}

export function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new InvalidArgumentError(`it is no JSON: ${(error as Error).message}`);
  }
}
