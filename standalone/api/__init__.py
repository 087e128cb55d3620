"""Embedded API server: the part of the Kubernetes API that Slacktide uses, on SQLite and a Unix socket.

Where it answers it does as kube-apiserver does. What differs on purpose:

* Objects are kept as they came: unknown fields are stored, not dropped (refused under `fieldValidation=Strict`).
* There are no controllers. What they would do, and matters here, happens in the same write: the status of disruption
  budgets follows their pods (expected pods are the matching pods that have not ended, as there are no owners to ask),
  and a namespace that is deleted takes its contents along. Pods of a node that is gone stay.
* Nothing that only a controller would take away again is added to new objects (not-ready taints, default
  tolerations, service account volumes).
* `kubernetes.io/batch-cpu` and `kubernetes.io/batch-memory` must be whole numbers.
* Bodies are JSON. Protobuf, YAML and server-side apply are answered with 415 (`kubectl apply` works, from 1.30 on;
  `kubectl create namespace`, which sends protobuf, does not: apply a manifest instead).
* Bookmarks come every 15 seconds. The last 10,000 changes can be watched from; older versions are 410.

From the inside out: `records`, `database`, `store` and `watchhub` keep and hand out objects; `patches`, `selectors`,
`shapes`, `defaults`, `validation`, `pdb`, `admission` are pure; `writes`, `podactions` and `settle` decide on a
transaction; `listing`, `logservice` and `handlers` answer requests; `app` and `server` are the HTTP around it.
"""
