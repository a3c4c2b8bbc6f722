/** The lines of one container as they are written, over `kubectl logs --follow`. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Cluster } from "./cluster/provider.ts";

export class PodLog {
  readonly lines: string[] = [];
  readonly #child: ChildProcess;
  readonly #waiting = new Set<() => void>();

  /** The container must have started. */
  constructor(cluster: Cluster, namespace: string, pod: string, container: string) {
    const args = [`--kubeconfig=${cluster.kubeconfigPath}`, "logs", "-f", "-n", namespace, pod, "-c", container];
    this.#child = spawn(cluster.tools.kubectl, args, { stdio: ["ignore", "pipe", "ignore"] });
    if (!this.#child.stdout) throw new Error("no standard output");
    createInterface({ input: this.#child.stdout }).on("line", (line) => {
      this.lines.push(line);
      for (const look of this.#waiting) look();
    });
  }

  /** The first line that contains `text`, now or later. */
  async line(text: string, msMax: number): Promise<string> {
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    const look = (): void => {
      const found = this.lines.find((line) => line.includes(text));
      if (found) resolve(found);
    };
    const timer = setTimeout(
      () => reject(new Error(`no line with "${text}" within ${msMax} ms; lines so far:\n${this.lines.join("\n")}`)),
      msMax,
    );
    this.#waiting.add(look);
    look();
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(look);
    }
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    this.#child.kill();
    await once(this.#child, "exit");
  }
}
