{{/* The scheduler's settings file. */}}
{{- define "slacktide.schedulerSettings" -}}
{{- $managed := fromYaml (include "slacktide.commonSettings" .) -}}
{{- $_ := set $managed "scheduler_name" .Values.scheduler.name -}}
{{- if .Values.scheduler.configuration -}}
{{- $_ := set $managed "configuration" "/etc/slacktide/config/scheduler.yaml" -}}
{{- end -}}
{{ include "slacktide.settings" (dict "given" .Values.scheduler.settings "managed" $managed) }}
{{- end }}

{{/* The KubeSchedulerConfiguration with its head. */}}
{{- define "slacktide.schedulerConfiguration" -}}
{{- with .Values.scheduler.configuration -}}
{{ toYaml (merge (dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration") .) }}
{{- end -}}
{{- end }}
