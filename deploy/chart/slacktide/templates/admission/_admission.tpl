{{/* Expressions (CEL) that several policies share. docs/admission.md says in words what they hold. */}}

{{/* The tier label, in small letters; Koordinator's counts where ours says nothing that we know. True for best-effort. */}}
{{- define "slacktide.admission.isBatch" -}}
object.metadata.?labels[?'slacktide.io/tier'].orValue('').lowerAscii() in ['be', 'ls', 'system']
  ? object.metadata.labels['slacktide.io/tier'].lowerAscii() == 'be'
  : object.metadata.?labels[?'koordinator.sh/qosClass'].orValue('') == 'BE'
{{- end }}

{{/* True where a label says that a pod is latency-sensitive or of the system; an unlabelled one is what it asks for. */}}
{{- define "slacktide.admission.isOther" -}}
object.metadata.?labels[?'slacktide.io/tier'].orValue('').lowerAscii() in ['be', 'ls', 'system']
  ? object.metadata.labels['slacktide.io/tier'].lowerAscii() != 'be'
  : object.metadata.?labels[?'koordinator.sh/qosClass'].orValue('') in ['LSE', 'LSR', 'LS', 'SYSTEM']
{{- end }}

{{/* The mirror of a static pod, which a kubelet makes, must equal the file. True for all others. */}}
{{- define "slacktide.admission.notMirror" -}}
!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})
  && 'system:nodes' in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* True where a pod, or one of its containers, asks for native CPU or memory. Explicit zeros ask for nothing. */}}
{{- define "slacktide.admission.native" -}}
([dyn(object).spec.?resources.?requests.orValue({})]
  + object.spec.containers.map(c, dyn(c).?resources.?requests.orValue({}))
  + object.spec.?initContainers.orValue([]).map(c, dyn(c).?resources.?requests.orValue({}))
).exists(requests, ['cpu', 'memory'].exists(name,
  name in requests && quantity(requests[name]).isGreaterThan(quantity('0'))))
{{- end }}

{{/* User name of one of our service accounts. A dict with root and component. */}}
{{- define "slacktide.admission.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:slacktide-{{ .component }}
{{- end }}

{{/* List of CEL strings. */}}
{{- define "slacktide.admission.list" -}}
[{{ range $index, $text := . }}{{ if $index }}, {{ end }}'{{ $text }}'{{ end }}]
{{- end }}

{{/* A binding that refuses what its policy does not allow. A dict with root and name. */}}
{{- define "slacktide.admission.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "slacktide.labels" (dict "root" .root) | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* Version of MutatingAdmissionPolicy that the API server serves; empty where it has none, or none is wanted. */}}
{{- define "slacktide.admission.conversionVersion" -}}
{{- if .Values.admission.conversion.enabled -}}
{{- if .Values.admission.conversion.apiVersion -}}
{{ .Values.admission.conversion.apiVersion }}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- end -}}
{{- end -}}
{{- end }}
