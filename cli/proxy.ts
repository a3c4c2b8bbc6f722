/** `fencedjob proxy`: the sidecar's proxy without Kubernetes, for development and tests. */
import { readFileSync } from "node:fs";
import { type Command, InvalidArgumentError, Option } from "commander";
import { raise } from "../fence/client.ts";
import { type FenceIdentity, sayEndpoint } from "../fence/database.ts";
import { FenceError } from "../fence/errors.ts";
import { addressFromUrl } from "../fence/url.ts";
import { Permit } from "../lease/permit.ts";
import { systemClock } from "../platform/clock.ts";
import { systemRandom } from "../platform/random.ts";
import type { ListenAddress } from "../sidecar/wire/listen.ts";
import type { ServerCertificate } from "../sidecar/wire/opening.ts";
import { probeSession } from "../sidecar/wire/probe.ts";
import { type RunningProxy, startProxy } from "../sidecar/wire/proxy.ts";
import { fenceVerdict, isLoss, sayVerdict, type Verdict } from "../sidecar/wire/verdict.ts";
import { byHand } from "./byhand.ts";
import { notNegative, positive } from "./numbers.ts";
import { processLogger } from "./process.ts";
import { untilTerminated } from "./terminated.ts";
import { word } from "./words.ts";

/** Exit code when another generation owns the job, at the start or later. */
const FENCED_OUT = 3;
/** Exit code when the application's sessions would not be admitted. */
const REFUSED = 1;
const FENCE_READ_MS = 2_000;
/** Fenced out, it stays this long at most, so that clients still get the reason as their answer. */
const LINGER_MS = 10_000;
const LINGER_POLL_MS = 100;
/** There is no controller that would issue the next one. */
const HIGHER = "Give a --generation above the fence's: each start of the job takes the next one.";
/** No Lease limits this proxy; the fence row does. */
const WITHOUT_END_MS = Number.MAX_SAFE_INTEGER;

interface ProxyCommand {
  readonly databaseUrl: string;
  readonly job: string;
  readonly generation: number;
  readonly listen: readonly ListenAddress[];
  readonly tlsCert?: string;
  readonly tlsKey?: string;
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
    .requiredOption("--job <fence name>", "fence name of the job, by default namespace/name", word)
    .requiredOption("--generation <number>", "the generation to raise, higher than the fence", positive)
    .requiredOption(
      "--listen <where>",
      "where the application connects: host:port, a port of 127.0.0.1, a directory for a Unix socket (of port 5432), or the path <directory>/.s.PGSQL.<port>; may be repeated",
      (text: string, before: ListenAddress[] = []) => [...before, listenAddress(text)],
    )
    .option("--tls-cert <file>", "certificate for clients that ask for TLS")
    .option("--tls-key <file>", "its key")
    .option("--drain-seconds <seconds>", "how long older transactions may go on", notNegative, 2)
    .action(async (options: ProxyCommand) => {
      try {
        process.exitCode = await runProxy(options);
      } catch (error) {
        if (!(error instanceof FenceError)) throw error;
        say(error.message);
        if (error.detail) say(`  ${error.detail}`);
        say(`  ${error.code === "LF001" ? HIGHER : byHand(error.hint)}`);
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
  const tls = serverCertificate(options);
  const [listen, ...alsoListen] = options.listen;
  if (!listen) throw new Error("--listen is missing");
  const permit = new Permit();
  permit.extend(WITHOUT_END_MS);
  // Listens first, and holds who comes: a place that is taken must not cost the generation at work its fence.
  const proxy = await startProxy({
    listen,
    alsoListen,
    ...(tls && { tls }),
    permit,
    clock: systemClock,
    random: systemRandom,
    log: processLogger("proxy"),
    drainMs,
  });
  try {
    const raised = await raise(address, identity, {
      drainMs,
      nonce: systemRandom.bytes(16).toString("hex"),
      issuer: "",
      clock: systemClock,
      signal,
    });
    const refused = await probeSession(address, raised, identity, {
      clock: systemClock,
      random: systemRandom,
      signal,
    });
    if (refused) {
      for (const line of [refused.message, `  ${byHand(refused.hint)}`]) say(line);
      return REFUSED;
    }
    permit.open();
    const verdict = fenceVerdict(() => address, { identity, incarnation: raised.incarnation }, systemClock);
    proxy.serve({ address, identity, verdict, jobId: raised.jobId, incarnation: raised.incarnation });
    const places = [{ host: listen.host, port: proxy.port }, ...alsoListen];
    say(
      `generation ${identity.generation} of "${options.job}" raised in ${Math.round(raised.tookMs)} ms; listening on ${places.map(sayEndpoint).join(", ")}`,
    );
    const loss = await untilLoss(() => verdict(false), signal);
    if (!loss) return 0;
    permit.lose();
    say(`fenced out: ${sayVerdict(loss)}`);
    await linger(proxy, signal);
    return FENCED_OUT;
  } finally {
    await proxy.close();
  }
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

function listenAddress(text: string): ListenAddress {
  const [, dir, socketPort] = /^(\/.*?)\/*(?:\.s\.PGSQL\.(\d+))?$/.exec(text) ?? [];
  if (dir !== undefined) return { host: dir, port: Number(socketPort ?? 5432) };
  const [, host, port] = /^(?:(.*):)?(\d+)$/.exec(text) ?? [];
  if (port === undefined || Number(port) > 65_535)
    throw new InvalidArgumentError("give host:port, a port of 127.0.0.1, or a directory for a Unix socket");
  return { host: host?.replace(/^\[(.*)\]$/, "$1") || "127.0.0.1", port: Number(port) };
}

function serverCertificate({ tlsCert, tlsKey }: ProxyCommand): ServerCertificate | undefined {
  if (tlsCert === undefined && tlsKey === undefined) return undefined;
  if (tlsCert === undefined || tlsKey === undefined) throw new Error("give --tls-cert and --tls-key together");
  return { certificate: readFileSync(tlsCert, "utf8"), key: readFileSync(tlsKey, "utf8") };
}

function say(line: string): void {
  process.stderr.write(`fencedjob proxy: ${line}\n`);
}
