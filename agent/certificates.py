"""The certificates of an agent, as a metric: those that it reports with and those that drills are served with."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from agent.settings import AgentSettings
from slacktide.transport import CertificateFiles
from slacktide.transport.watched import ExpiryMetrics


def follow_certificates(settings: AgentSettings, registry: CollectorRegistry) -> ExpiryMetrics:
    """Show until when they are good, where there are any."""
    report, drill = settings.report, settings.drill
    metrics = ExpiryMetrics(registry)
    metrics.follow(CertificateFiles(report.certificate_file, report.key_file, report.ca_file, "report"))
    if drill.tls_certificate_file:
        files = (drill.tls_certificate_file, drill.tls_key_file, drill.tls_client_ca_file)
        metrics.follow(CertificateFiles(*files, "drill.tls"))
    return metrics
