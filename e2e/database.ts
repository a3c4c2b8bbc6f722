/** A PostgreSQL in the cluster, as a pod behind a service, with the fence installed and a role for the application. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import pg from "pg";
import { install } from "../fence/client.ts";
import { makeRole } from "../fence/role.ts";
import { addressFromUrl } from "../fence/url.ts";
import { freePort } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { image } from "./cluster/images.ts";
import { checkout } from "./cluster/paths.ts";
import type { Cluster } from "./cluster/provider.ts";

export const DEMO_NAMESPACE = "billing";
export const DATABASE = "ledger";
export const APP_ROLE = "invoice_app";
const ADMIN_PASSWORD = "demo-admin";
const APP_PASSWORD = "demo-app";
const POD = "ledger-db";

export interface ClusterDatabase {
  /** Asks as the administrator, through a port-forward: the truth about what was committed. */
  query<Row extends object>(sql: string, values?: unknown[]): Promise<Row[]>;
  close(): Promise<void>;
}

/** Namespace, server, fence schema, role, Secret `ledger-db` and the example's tables. */
export async function startClusterDatabase(
  cluster: Cluster,
  namespace: string,
  say: (line: string) => void,
): Promise<ClusterDatabase> {
  const ref = await cluster.loadImage(await image("fencedjob-demo-postgres", say));
  const apply = (...items: object[]): Promise<string> =>
    cluster.kubectl(["apply", "--server-side", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
  await apply({ apiVersion: "v1", kind: "Namespace", metadata: { name: namespace } });
  // A pod is refused until there is the namespace's own account, which comes a moment after it.
  await until(() => cluster.kubectl(["get", "serviceaccount", "-n", namespace, "default"]));
  await apply(...databaseObjects(namespace, ref));
  await cluster.kubectl(["wait", "-n", namespace, "--for=condition=Ready", `pod/${POD}`, "--timeout=300s"]);
  const forward = await portForward(cluster, namespace);
  const url = `postgres://postgres:${ADMIN_PASSWORD}@127.0.0.1:${forward.port}/${DATABASE}?sslmode=disable`;
  const pool = new pg.Pool({ connectionString: url, max: 2 });
  pool.on("error", () => {}); // the next query says what is wrong
  const address = addressFromUrl(url);
  // A pod is ready when its port opens; on its first start the server may still be creating the database.
  await until(() => pool.query("SELECT 1").then(() => true));
  await install(address);
  await makeRole(address, { name: APP_ROLE, password: APP_PASSWORD });
  await pool.query(readFileSync(join(checkout, "examples/invoice-run/schema.sql"), "utf8"));
  return {
    query: async (sql, values) => (await pool.query(sql, values)).rows,
    close: async () => {
      await pool.end();
      await forward.stop();
    },
  };
}

function databaseObjects(namespace: string, ref: string): object[] {
  const labels = { app: POD };
  const uri = `postgres://${APP_ROLE}:${APP_PASSWORD}@${POD}.${namespace}.svc:5432/${DATABASE}?sslmode=disable`;
  return [
    { apiVersion: "v1", kind: "Secret", metadata: { name: POD, namespace }, stringData: { uri } },
    {
      apiVersion: "v1",
      kind: "Service",
      metadata: { name: POD, namespace },
      spec: { selector: labels, ports: [{ port: 5432 }] },
    },
    {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name: POD, namespace, labels },
      spec: {
        automountServiceAccountToken: false,
        terminationGracePeriodSeconds: 1,
        containers: [
          {
            name: "postgres",
            image: ref,
            imagePullPolicy: "IfNotPresent",
            // Commit times are what the takeover is measured by.
            args: ["-c", "track_commit_timestamp=on"],
            env: [
              { name: "POSTGRES_PASSWORD", value: ADMIN_PASSWORD },
              { name: "POSTGRES_DB", value: DATABASE },
            ],
            readinessProbe: { tcpSocket: { port: 5432 }, periodSeconds: 1 },
          },
        ],
      },
    },
  ];
}

async function portForward(cluster: Cluster, namespace: string): Promise<{ port: number; stop(): Promise<void> }> {
  const port = await freePort();
  const args = [
    `--kubeconfig=${cluster.kubeconfigPath}`,
    "port-forward",
    "-n",
    namespace,
    `pod/${POD}`,
    `${port}:5432`,
  ];
  const child = spawn(cluster.tools.kubectl, args, { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  const listening = new Promise<void>((resolve, reject) => {
    child.stdout.on("data", (chunk: Buffer) => chunk.includes("Forwarding from") && resolve());
    child.stderr.on("data", (chunk: Buffer) => {
      said += chunk;
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`kubectl port-forward ended with ${code}: ${said}`)));
  });
  await listening;
  return {
    port,
    stop: async () => {
      if (child.exitCode !== null) return;
      child.kill();
      await once(child, "exit");
    },
  };
}
