/**
 * Controllers at a real API server, and jobs in namespaces of their own. There is no kubelet here: the tests write the pod statuses that
 * one would write, and the Lease renewals of a sidecar. Real pods run in e2e/.
 */
import type { FencedJobStatus } from "../controller/api/status.ts";
import type { Controller } from "../controller/controller.ts";
import { RESOURCES } from "../controller/kube/api.ts";
import { isNotFound } from "../controller/kube/errors.ts";
import type { KubeObject, RawObject } from "../controller/kube/objects.ts";
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import { type RawLease, readLease, renewedLease } from "../lease/record.ts";
import { startTestController } from "./controller.ts";
import { type JobServer, startJobServer } from "./jobserver.ts";
import { until } from "./until.ts";

export class ControllerScene {
  readonly jobs: JobServer;
  /** Of the present test. */
  namespace = "";
  readonly #controllers: Controller[] = [];
  #tests = 0;

  static async start(): Promise<ControllerScene> {
    return new ControllerScene(await startJobServer());
  }

  private constructor(jobs: JobServer) {
    this.jobs = jobs;
  }

  /** A namespace for the next test. */
  async begin(): Promise<void> {
    this.namespace = `test-${++this.#tests}`;
    await this.jobs.server.createNamespace(this.namespace);
  }

  /** Stops the controllers. */
  async end(): Promise<void> {
    for (const controller of this.#controllers.splice(0)) await controller.stop();
  }

  stop(): Promise<void> {
    return this.jobs.stop();
  }

  /** Those of one Lease elect; two of them are an installation made twice. */
  async controller(lease = "fencedjob-controller"): Promise<void> {
    const name = `controller-${this.#controllers.length}`;
    const { namespace } = this;
    const { kube } = this.jobs;
    this.#controllers.push(await startTestController({ kube, namespace, lease: this.at(lease), name }));
  }

  at(name: string): { namespace: string; name: string } {
    return { namespace: this.namespace, name };
  }

  /** Nobody renews unless the test does: the Lease runs out only where `spec` says so. */
  create(name: string, spec: object = {}): Promise<RawObject> {
    return this.jobs.createJob(this.at(name), { lease: { durationSeconds: 600 }, ...spec });
  }

  status(name: string): Promise<FencedJobStatus> {
    return this.jobs.status(this.at(name));
  }

  async condition(name: string, type: string): Promise<FencedJobStatus["conditions"][number] | undefined> {
    return (await this.status(name)).conditions.find((one) => one.type === type);
  }

  /** What `kubectl describe` shows, with the events. */
  described(name: string): Promise<string> {
    return this.jobs.server.kubectl(["describe", "fencedjob", "-n", this.namespace, name]);
  }

  /** Writes the status that a kubelet would, once there is the pod: the sidecar runs, and the phase. */
  async podIs(name: string, phase: string, sidecar: object = { running: {} }): Promise<RawObject> {
    const { api } = this.jobs;
    await until(() => api.get(RESOURCES.pods, this.at(name)).then(() => true));
    const status = {
      phase,
      initContainerStatuses: [
        { name: SIDECAR_NAME, image: "x", imageID: "x", ready: true, restartCount: 0, state: sidecar },
      ],
    };
    return api.patch(RESOURCES.pods, this.at(name), { status }, { subresource: "status" });
  }

  lease(name: string): Promise<RawLease & KubeObject> {
    return this.jobs.api.get<RawLease & KubeObject>(RESOURCES.leases, this.at(name));
  }

  /** As the holder's sidecar does. */
  async renew(name: string, report = ""): Promise<void> {
    const lease = await this.lease(name);
    const { holder, generation } = readLease(lease);
    const grant = { holder: holder ?? "", generation: generation ?? 0 };
    await this.jobs.api.update(RESOURCES.leases, renewedLease(lease, grant, new Date(), report));
  }

  /** Until the pod owns; returns its generation. */
  owned(job: string, pod: string): Promise<number> {
    return until(async () => {
      const { owner } = await this.status(job);
      const lease = owner?.pod === pod && readLease(await this.lease(job));
      return lease && lease.holder === owner?.uid ? owner.generation : null;
    });
  }

  gone(name: string): Promise<boolean> {
    return until(() => this.jobs.api.get(RESOURCES.fencedJobs, this.at(name)).then(() => false, isNotFound));
  }
}
