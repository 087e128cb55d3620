{{/* The agent's settings file. */}}
{{- define "slacktide.agentSettings" -}}
{{- $agent := .Values.agent -}}
{{- $managed := fromYaml (include "slacktide.commonSettings" .) -}}
{{- $_ := set $managed "predictor" (printf "slacktide-predictor.%s.svc:7443" .Release.Namespace) -}}
{{- $_ := set $managed "report" (dict "ca_file" "/etc/slacktide/ca/ca.crt" "token_file" "/var/run/secrets/slacktide/token") -}}
{{- $_ := set $managed "collect" (dict "perf" $agent.perf "gpu" $agent.gpu.enabled) -}}
{{- $_ := set $managed "weight" (dict "core_scheduling" $agent.coreScheduling) -}}
{{- $_ := set $managed "observe_only" $agent.observeOnly -}}
{{- if $agent.drills.enabled -}}
{{- $_ := set $managed "drill" (dict "tls_certificate_file" "/etc/slacktide/tls/tls.crt" "tls_key_file" "/etc/slacktide/tls/tls.key" "load" $agent.drills.load) -}}
{{- end -}}
{{ include "slacktide.settings" (dict "given" $agent.settings "managed" $managed) }}
{{- end }}
