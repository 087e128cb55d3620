{{/* Labels of every object. Give it a dict with root and, where the object belongs to one, component. */}}
{{- define "slacktide.labels" -}}
{{ include "slacktide.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels that select the pods of a component; they never change over the life of a release. */}}
{{- define "slacktide.selectorLabels" -}}
app.kubernetes.io/name: slacktide
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}
