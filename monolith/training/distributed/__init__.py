"""Training on several processes: what chief, workers and parameter servers do beside the step.

The entry point is `monolith.training.cpu.distributed_train`; every process of a job calls it, with
its own role and index in the config. In the order in which they meet a reader of that function:

| module | does |
| --- | --- |
| `start` | checks the config, starts TensorFlow's server, joins the members |
| `server` | what a parameter server does until it is dismissed, and dismissing it |
| `plan` | what all members must agree on: code, settings, features, variables |
| `watch` | notices members that are dead, frozen or replaced while a step waits for them |
| `worker` | one attempt to train: session, estimator, hooks |
| `recovery` | whether a worker tries again, and what it waits for meanwhile |
| `report`, `crossings`, `exporter` | what members tell of themselves, and to whom |
| `status` | all that is known of a job, from its directory and its controller |
| `debugging` | variables and rows of a running job, from outside |

`monolith.cluster.members` has the records and heartbeats of the members. Who wants to show or to
steer a job reads those (`read_members`), and asks the chief's controller
(`monolith.training.controller.client`).
"""
