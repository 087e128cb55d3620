"""Fills the history from a Prometheus that has watched the cluster for a while.

client      HTTP: deadlines, retries, what each refusal means
answers     the JSON of the query API as arrays
queries     PromQL text; the one place that knows metric and label names
survey      which of these metrics a server has, how its nodes are named, how often it scrapes
tiers       tier of the pods that labels or requests speak for
windows     windows of use to slots (pure)
pods        use of pods by hours
plan        which slots are still to fetch, in which pieces (pure)
importer    the whole: fetch, convert, store, remember what is done
"""
