"""`slacktide convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.app import App, common_options, examples

if TYPE_CHECKING:
    from cli.converting import Rules


@click.command(
    "convert",
    epilog=examples(
        "slacktide convert -f job.yaml | kubectl apply -f -",
        "slacktide convert -f manifests/ > batch.yaml",
        "helm template nightly ./chart | slacktide convert -f - | kubectl apply -f -",
        "slacktide convert --all -f report.yaml",
    ),
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifests in YAML or JSON, a directory of them, or - for standard input; may be repeated.",
)
@click.option("--all", "unlabelled", is_flag=True, help="Label and convert also what no label assigns to a tier.")
@click.option("--scheduler", metavar="NAME", help="Scheduler of the pods; empty leaves it alone.  [default: ours]")
@click.option(
    "--priority-class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Priority class of the pods; more of them are kept where they are found.  [default: slacktide-batch]",
)
@common_options
@click.pass_obj
def command(app: App, /, files: tuple[str, ...], **options: Any) -> None:
    """Turn ordinary best-effort workloads in manifests into batch workloads.

    Pods, and what makes pods (Deployment, Job, CronJob, ...), that the label slacktide.io/tier says are best-effort ask
    for batch CPU and memory instead of cpu and memory, the larger of request and limit, and get scheduler and priority
    class. All else is printed as it is. The same happens in the cluster to pods of namespaces with the label
    slacktide.io/batch: enabled. Documents that change lose their comments. With --output json: one list.
    """
    from cli.converting import convert
    from cli.manifests import dump, read
    from slacktide.errors import ManifestError

    rules = _rules(options)
    texts, manifests = [], []
    for document in read(files):
        if document.value is None:
            continue
        try:
            done = convert(document.value, rules)
        except ManifestError as error:
            raise ManifestError(f"{document.where}: {error}") from None
        for remark in done.remarks:
            app.out.say(remark)
        manifests.append(done.manifest)
        texts.append(dump(done.manifest) if done.changed else document.text)
    if app.out.json:
        app.out.document({"apiVersion": "v1", "kind": "List", "items": manifests})
        return
    for text in texts:
        body = text if text.startswith("---") else f"---\n{text.lstrip()}"
        app.out.text(body.rstrip("\n"))


def _rules(options: dict[str, Any]) -> Rules:
    from cli.converting import Rules

    rules: dict[str, Any] = {"unlabelled": options["unlabelled"]}
    if options["scheduler"] is not None:
        rules["scheduler"] = options["scheduler"]
    if options["classes"]:
        rules["priority_classes"] = options["classes"]
    return Rules(**rules)
