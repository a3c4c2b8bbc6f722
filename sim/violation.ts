/** An invariant that does not hold. */
export class Violation extends Error {
  override name = "Violation";
}

export function violated(what: string): never {
  throw new Violation(what);
}
