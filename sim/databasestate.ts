/** What a modelled database holds, and what is asked of it and told by it. */
import type { Witness } from "../fence/witness.ts";

/** What is committed. */
export interface State {
  readonly job: Row;
  /** Open gates and closed ones. */
  readonly gates: Map<number, boolean>;
  /** Generation by holder. */
  readonly claims: Map<string, number>;
  readonly closed: Set<number>;
  /** By generation. */
  readonly witness: Map<number, Witness>;
  /** Protected work: the generations of its commits, in their order. */
  readonly work: number[];
}

export interface Row {
  generation: number;
  holder: string;
  holderName: string;
  nonce: string;
  issuer: string;
  incarnation: string;
}

/** Who raises, and whose raises a person has said to be taken over. */
export interface Issuing {
  readonly issuer: string;
  readonly acceptedIssuer?: string | undefined;
  readonly acceptedGeneration?: number | undefined;
}

/** What an owner remembers of the heartbeat before, and what he writes now. */
export interface Beat {
  readonly incarnation: string;
  readonly witness: Witness;
  readonly next: string;
}

/** A commit, as it took effect. */
export type Commit =
  | { readonly kind: "raise"; readonly generation: number; readonly holder: string; readonly issuer: string }
  | { readonly kind: "close"; readonly generation: number }
  | { readonly kind: "work"; readonly generation: number };

export const copyOf = ({ job, gates, claims, closed, witness, work }: State): State => ({
  job: { ...job },
  gates: new Map(gates),
  claims: new Map(claims),
  closed: new Set(closed),
  witness: new Map(witness),
  work: [...work],
});
