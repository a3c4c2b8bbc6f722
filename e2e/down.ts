/** `make down`: removes everything that `make demo` started. */
import { closeCluster } from "./cluster/provider.ts";
import { RELEASE, SYSTEM_NAMESPACE } from "./controller.ts";
import { DEMO_NAMESPACE } from "./database.ts";

try {
  await closeCluster({ name: RELEASE, namespace: SYSTEM_NAMESPACE }, [DEMO_NAMESPACE], console.log);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
