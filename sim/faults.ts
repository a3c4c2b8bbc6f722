/** What goes wrong in a history: drawn from its seed, and a list, so that a failing history can be made smaller. */
import type { Random } from "../platform/random.ts";

export type FaultKind =
  | "freezePod"
  | "suspendMachine"
  | "crashSidecar"
  | "failApplication"
  | "deletePod"
  | "loseNode"
  | "cutPodFromApi"
  | "fadePodFromApi"
  | "cutPodFromDatabase"
  | "cutController"
  | "lagWatch"
  | "cutApi"
  | "slowNetwork"
  | "leavePodFrozen"
  | "leavePodCutOff"
  | "freezeControllerMidway"
  | "nameAnotherMidway"
  | "crashController"
  | "freezeController"
  | "crashDatabase"
  | "refuseDatabase"
  | "restoreDatabase"
  | "promoteReplica"
  | "copyBackVolume"
  | "raiseElsewhere"
  | "restoreEtcd"
  | "compactEtcd"
  | "setWall"
  | "nameAnotherPod"
  | "writeGeneration"
  | "writeDuration"
  | "writeReport"
  | "takeLabelOff"
  | "deleteLease"
  | "suspendJob"
  | "changeImage"
  | "changeDatabases"
  | "shortenLease"
  | "remakeJob"
  | "loseStatus";

export interface Fault {
  readonly atMs: number;
  readonly kind: FaultKind;
  /** 0 … 1: which pod or controller, of those that there are. */
  readonly which: number;
  readonly lastsMs: number;
}

/** With how often each is drawn. */
const WEIGHTS: Readonly<Record<FaultKind, number>> = {
  freezePod: 6,
  suspendMachine: 1,
  crashSidecar: 3,
  failApplication: 3,
  deletePod: 3,
  loseNode: 2,
  cutPodFromApi: 4,
  fadePodFromApi: 4,
  cutPodFromDatabase: 4,
  cutController: 3,
  lagWatch: 3,
  cutApi: 1,
  slowNetwork: 2,
  leavePodFrozen: 2,
  leavePodCutOff: 2,
  freezeControllerMidway: 5,
  nameAnotherMidway: 3,
  crashController: 4,
  freezeController: 4,
  crashDatabase: 2,
  refuseDatabase: 2,
  restoreDatabase: 2,
  promoteReplica: 2,
  copyBackVolume: 2,
  raiseElsewhere: 2,
  restoreEtcd: 2,
  compactEtcd: 2,
  setWall: 2,
  nameAnotherPod: 4,
  writeGeneration: 2,
  writeDuration: 1,
  writeReport: 1,
  takeLabelOff: 1,
  deleteLease: 2,
  suspendJob: 2,
  changeImage: 2,
  changeDatabases: 2,
  shortenLease: 2,
  remakeJob: 2,
  loseStatus: 2,
};
const KINDS = Object.keys(WEIGHTS) as FaultKind[];
const TOTAL = Object.values(WEIGHTS).reduce((a, b) => a + b);
const FAULTS_MAX = 14;
const LASTS_MS_MAX = 40_000;

export function drawFaults(random: Random, untilMs: number): Fault[] {
  const count = Math.floor(random.unit() * (FAULTS_MAX + 1));
  const faults = Array.from({ length: count }, () => ({
    atMs: random.unit() * untilMs,
    kind: drawKind(random),
    which: random.unit(),
    lastsMs: random.unit() ** 2 * LASTS_MS_MAX,
  }));
  return faults.sort((a, b) => a.atMs - b.atMs);
}

function drawKind(random: Random): FaultKind {
  let left = random.unit() * TOTAL;
  for (const kind of KINDS) {
    left -= WEIGHTS[kind];
    if (left < 0) return kind;
  }
  return "freezePod";
}

/** Of a share that has chosen a pod already, other digits. */
export const digits = (which: number): number => (which * 97) % 1;
