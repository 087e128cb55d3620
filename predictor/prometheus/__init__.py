"""Fills the history from a Prometheus that has watched the cluster for a while.

- access: address, credentials, TLS
- client: HTTP with deadlines, retries, what each refusal means
- answers: the JSON of the query API as arrays
- queries: PromQL text; the one place that knows names of metrics and labels
- sources: which node a label names, how far windows are apart
- survey: which metrics a server has, how its nodes are named, how often it scrapes
- tiers: tier of the pods that labels or requests speak for
- fetch: the queries of one piece of time, and their answers side by side
- windows, columns: windows of use to slots, slots to columns of the history (pure)
- pods: use of pods by hours
- plan, progress: which slots are still to fetch, in which pieces; what is done (pure)
- importer: the whole: fetch, convert, store, remember
"""
