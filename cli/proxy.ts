/** `fencedjob proxy`: the sidecar's proxy without Kubernetes, for development and tests. */
import { type Command, InvalidArgumentError, Option } from "commander";
import { raise } from "../fence/client.ts";
import type { FenceIdentity } from "../fence/database.ts";
import { FenceError } from "../fence/errors.ts";
import { addressFromUrl } from "../fence/url.ts";
import { Permit } from "../lease/permit.ts";
import { systemClock } from "../platform/clock.ts";
import { systemRandom } from "../platform/random.ts";
import { type RunningProxy, startProxy } from "../sidecar/wire/proxy.ts";
import { fenceVerdict, isLoss, sayVerdict, type Verdict } from "../sidecar/wire/verdict.ts";
import { processLogger, untilTerminated } from "./process.ts";

/** Exit code when another generation owns the job, at the start or later. */
const FENCED_OUT = 3;
const FENCE_READ_MS = 2_000;
/** Fenced out, it stays this long at most, so that clients still get the reason as their answer. */
const LINGER_MS = 10_000;
const LINGER_POLL_MS = 100;
/** No Lease limits this proxy; the fence row does. */
const WITHOUT_END_MS = Number.MAX_SAFE_INTEGER;

interface ProxyCommand {
  readonly databaseUrl: string;
  readonly job: string;
  readonly generation: number;
  readonly listen: { readonly host: string; readonly port: number };
  readonly drainSeconds: number;
}

export function registerProxy(program: Command): void {
  program
    .command("proxy")
    .description("raise a generation of a job and serve its PostgreSQL traffic, without Kubernetes")
    .addOption(
      new Option("--database-url <url>", "postgres://user:password@host:port/database of the application's role")
        .env("DATABASE_URL")
        .makeOptionMandatory(),
    )
    .requiredOption("--job <fence name>", "fence name of the job, by default namespace/name")
    .requiredOption("--generation <number>", "the generation to raise, higher than the fence", positive)
    .requiredOption("--listen <host:port>", "where the application connects", hostAndPort)
    .option("--drain-seconds <seconds>", "how long older transactions may go on", positive, 2)
    .action(async (options: ProxyCommand) => {
      try {
        process.exitCode = await runProxy(options);
      } catch (error) {
        if (!(error instanceof FenceError)) throw error;
        say(error.message);
        if (error.detail) say(`  ${error.detail}`);
        say(`  ${error.hint}`);
        process.exitCode = error.final ? FENCED_OUT : 1;
      }
    });
}

async function runProxy(options: ProxyCommand): Promise<number> {
  const signal = untilTerminated();
  const address = addressFromUrl(options.databaseUrl);
  const identity: FenceIdentity = {
    fenceName: options.job,
    generation: options.generation,
    holder: systemRandom.bytes(16).toString("hex"),
    holderName: `fencedjob-proxy-${process.pid}`,
  };
  const drainMs = options.drainSeconds * 1000;
  const raised = await raise(address, identity, {
    drainMs,
    nonce: systemRandom.bytes(16).toString("hex"),
    issuer: "fencedjob-proxy",
    clock: systemClock,
    signal,
  });
  const permit = new Permit();
  permit.extend(WITHOUT_END_MS);
  permit.open();
  const verdict = fenceVerdict(address, identity, systemClock);
  const proxy = await startProxy({
    listen: options.listen,
    address,
    jobId: raised.jobId,
    identity,
    permit,
    clock: systemClock,
    random: systemRandom,
    log: processLogger("proxy"),
    verdict,
    drainMs,
  });
  say(
    `generation ${identity.generation} of "${options.job}" raised in ${Math.round(raised.tookMs)} ms; listening on ${options.listen.host}:${proxy.port}`,
  );
  const loss = await untilLoss(() => verdict(false), signal);
  if (!loss) {
    await proxy.close();
    return 0;
  }
  permit.lose();
  say(`fenced out: ${sayVerdict(loss)}`);
  await linger(proxy, signal);
  await proxy.close();
  return FENCED_OUT;
}

/** The verdict of loss, or null at the end of the process. */
async function untilLoss(read: () => Promise<Verdict>, signal: AbortSignal): Promise<Verdict | null> {
  while (!signal.aborted) {
    const verdict = await read();
    if (isLoss(verdict)) return verdict;
    await systemClock.sleep(FENCE_READ_MS, signal).catch(() => {});
  }
  return null;
}

async function linger(proxy: RunningProxy, signal: AbortSignal): Promise<void> {
  const untilMs = systemClock.monoMs() + LINGER_MS;
  while (proxy.connections > 0 && !signal.aborted && systemClock.monoMs() < untilMs) {
    await systemClock.sleep(LINGER_POLL_MS, signal).catch(() => {});
  }
}

function positive(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) throw new InvalidArgumentError("it must be a whole number from 1 on");
  return value;
}

function hostAndPort(text: string): { host: string; port: number } {
  const [, host, port] = /^(?:(.*):)?(\d+)$/.exec(text) ?? [];
  if (port === undefined || Number(port) > 65_535)
    throw new InvalidArgumentError("give host:port, or a port of 127.0.0.1");
  return { host: host?.replace(/^\[(.*)\]$/, "$1") || "127.0.0.1", port: Number(port) };
}

function say(line: string): void {
  process.stderr.write(`fencedjob proxy: ${line}\n`);
}
