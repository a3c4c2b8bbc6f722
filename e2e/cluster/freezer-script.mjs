// Runs in the freezer's pod: freezes or thaws every process of a pod, application and sidecar alike, through the pod's cgroup.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

const [command, podUid = ""] = process.argv.slice(2);
const root = "/host/cgroup";
const version1 = existsSync(`${root}/freezer`);
// Named by the kubelet: `pod<uid>`, or `…-pod<uid with underscores>.slice` where systemd keeps the cgroups.
const names = (entry) => entry === `pod${podUid}` || entry.endsWith(`-pod${podUid.replaceAll("-", "_")}.slice`);
const DEPTH_MAX = 8;
const WAIT_ROUNDS_MAX = 500;

function find(dir, depth) {
  const subgroups = readdirSync(dir, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  const found = subgroups.find((entry) => names(entry.name));
  if (found) return `${dir}/${found.name}`;
  if (depth === DEPTH_MAX) return undefined;
  for (const { name } of subgroups) {
    const below = find(`${dir}/${name}`, depth + 1);
    if (below) return below;
  }
  return undefined;
}

const cgroup = find(version1 ? `${root}/freezer` : root, 0);
if (!cgroup) {
  console.error(`no cgroup of pod ${podUid} on this node: it runs elsewhere or has ended`);
  process.exit(1);
}
const freeze = command === "freeze";
const isSo = version1
  ? () => readFileSync(`${cgroup}/freezer.state`, "utf8").trim() === (freeze ? "FROZEN" : "THAWED")
  : () => readFileSync(`${cgroup}/cgroup.events`, "utf8").includes(`frozen ${freeze ? 1 : 0}`);
const write = version1
  ? () => writeFileSync(`${cgroup}/freezer.state`, freeze ? "FROZEN" : "THAWED")
  : () => writeFileSync(`${cgroup}/cgroup.freeze`, freeze ? "1" : "0");

// Version 1 stays in FREEZING until each process has stopped, and needs the write again to look once more.
for (let round = 0; round < WAIT_ROUNDS_MAX; round++) {
  write();
  if (isSo()) process.exit(0);
  await new Promise((resolve) => setTimeout(resolve, 10));
}
console.error(`${cgroup} is still not ${freeze ? "frozen" : "thawed"}`);
process.exit(1);
