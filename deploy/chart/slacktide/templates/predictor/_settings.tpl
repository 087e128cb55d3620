{{/* The predictor's settings file. */}}
{{- define "slacktide.predictorSettings" -}}
{{- $managed := fromYaml (include "slacktide.commonSettings" .) -}}
{{- $_ := set $managed "history_dir" "/var/lib/slacktide/predictor" -}}
{{- $_ := set $managed "tls" (dict "certificate_file" "/etc/slacktide/tls/tls.crt" "key_file" "/etc/slacktide/tls/tls.key") -}}
{{- $_ := set $managed "auth" (dict "audience" "slacktide-predictor" "agents" (list (printf "system:serviceaccount:%s:slacktide-agent" .Release.Namespace))) -}}
{{ include "slacktide.settings" (dict "given" .Values.predictor.settings "managed" $managed) }}
{{- end }}
