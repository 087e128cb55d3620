{{/* The extender's settings file. */}}
{{- define "slacktide.extenderSettings" -}}
{{- $extender := .Values.extender -}}
{{- $managed := fromYaml (include "slacktide.commonSettings" .) -}}
{{- $tls := dict "certificate_file" "/etc/slacktide/tls/tls.crt" "key_file" "/etc/slacktide/tls/tls.key" -}}
{{- if $extender.clientCa -}}
{{- $_ := set $tls "client_ca_file" "/etc/slacktide/config/client-ca.crt" -}}
{{- end -}}
{{- $_ := set $managed "tls" $tls -}}
{{- $_ := set $managed "bind" $extender.bind -}}
{{ include "slacktide.settings" (dict "given" $extender.settings "managed" $managed) }}
{{- end }}
