/** Every reason of a condition or an event: PascalCase, one place, listed in docs/reference (generated). */

export const CONDITION_TYPES = [
  "Admitted",
  "Owned",
  "FenceRaised",
  "Suspended",
  "Complete",
  "Failed",
  "ForeignIssuer",
] as const;
export type ConditionType = (typeof CONDITION_TYPES)[number];

/** Reason → what it means and what to do, for docs/reference.md. */
export const REASONS = {
  Pending: "Not looked at yet.",
  // Admitted
  Accepted: "The spec is valid and the API server accepts the pod in a dry run.",
  InvalidSpec: "The spec breaks a rule that the CRD states too; fix the field that the message names.",
  InvalidTemplate: "The API server refuses the pod of spec.template; the message is its own. Running owners go on.",
  AdmissionUnavailable: "The API server could not try the pod, a webhook may be down; it is tried again.",
  HostNetwork: "spec.template uses hostNetwork: the proxy's port would be open to the whole node. Remove it.",
  ReservedName: "spec.template uses a container or volume name that the sidecar needs; rename yours.",
  // Owned
  Suspended: "spec.suspend is true: there is no owner.",
  Deleting: "The FencedJob is being deleted: its pods are stopped and its fences closed first.",
  Ending: "The owner has given the Lease back and its pod is ending.",
  Granted: "The pod owns the named generation.",
  WaitingForPod: "A candidate's pod is being created, scheduled or pulled; the message says what it waits for.",
  WaitingForLease:
    "An older holder's Lease has not run out; deleting the pod that the message names shortens the wait. Or the Lease cannot be written, as the message says.",
  LeaseForeign: "The Lease of this name is not a FencedJob's, and is left alone; rename the job or delete that Lease.",
  RenewalOverdue: "The owner has not renewed; a candidate is prepared, and takes over when the lease has run out.",
  BackingOff: "The last owner failed; the next candidate starts at the time in the message.",
  Finished: "The job has ended: there is no owner.",
  // why an ownership ended (history, events)
  LeaseExpired: "The owner did not renew for its lease duration; its writes will be refused.",
  LeaseDeleted: "The Lease was deleted under its owner, which is loss for it.",
  LeaseTaken: "The Lease names a holder that the controller did not grant.",
  Deleted: "The owner was stopped because the FencedJob is being deleted.",
  SpecChanged: "The spec changed before the owner's application had started; a pod of the new spec replaces it.",
  Released: "The owner gave the Lease back.",
  PodFailed: "The owner's pod failed.",
  PodGone: "The owner's pod no longer exists.",
  PodDeleted: "Somebody deleted the owner's pod.",
  Evicted:
    "The owner's pod was evicted: by a drain, by another call of the eviction API, or by its node under pressure.",
  Preempted: "The owner's pod made room for a pod of higher priority.",
  NodeLost: "The node of the owner's pod is gone or does not answer.",
  PodSucceeded: "The owner's pod ended well.",
  EndedUnserved:
    "The pod's application, which runs while its pod is a candidate, ended well before it had a session as the owner; it counts as a failure. It must wait for its first connection.",
  RaiseRefused: "A database refused this owner's generation for good; it is replaced by a pod with a higher one.",
  // FenceRaised
  Raised: "Every database accepts the owner's generation only.",
  FenceClosed: "No generation is let in any more, until the next one is raised.",
  FenceClosing:
    "A closer raises the fence and closes it, as the last owner's sidecar could not; it holds no application.",
  Raising: "The owner is raising the fence; the application has not started.",
  SecretMissing: "The Secret is absent or has no usable address; create it, the sidecar reads it again by itself.",
  AuthenticationFailed: "The database refuses user or password.",
  DatabaseUnreachable: "The database does not answer at the address of the Secret.",
  DatabaseReadOnly: "The database is in recovery or read-only: a fence cannot be raised there.",
  SchemaMissing: "The fence schema is not installed, or of a version that this sidecar does not know.",
  MissingRights: "The database user lacks rights on the fence schema.",
  RoleNotFenceable: "The database user ignores privileges (superuser …): a fence could not refuse it.",
  PoolerInBetween:
    "A pooler between sidecar and server is in transaction mode, or drops the read-only default; the message names the remedy.",
  RaiseBlocked: "Somebody who did not come through the proxy holds a lock that the raise needs; the message names who.",
  PortTaken: "Another container of the pod listens on the database's port; choose another port in spec.databases.",
  RaiseFailed: "The raise failed for another reason, see the message.",
  // Suspended
  NotSuspended: "spec.suspend is false.",
  Suspending: "spec.suspend is true; the owner is being stopped.",
  Stopped: "spec.suspend is true, no pod of the job is left, and its fences are closed.",
  // Complete, Failed
  Running: "The job has not ended.",
  Completed: "The owner of the last generation ended well.",
  BackoffLimitExceeded: "More consecutive failures than spec.backoffLimit.",
  DeadlineExceeded: "The job ran longer than spec.activeDeadlineSeconds.",
  // ForeignIssuer
  OneIssuer: "This cluster raised the fence last, in every database.",
  RaisedElsewhere:
    "Another cluster raised the fence of this name last; nothing is raised over it until spec.takeOver says so, with the command in the message.",
  // events only
  UnknownPod: "A pod claims to be the job's, and the controller has not made it; it is granted nothing, and deleted.",
  ActionRefused:
    "The API server, or somebody's webhook or policy, does not let the controller do what the message names; it is tried again.",
  WriteRefused: "Writes of an older generation were refused after its end.",
  FenceRaised: "A database accepted the new generation.",
  FenceNotClosed:
    "The FencedJob was deleted, or has failed, though a fence could not be closed; the message has the command that closes it.",
} as const;

export type Reason = keyof typeof REASONS;
