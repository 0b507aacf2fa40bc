package broker

import "runtime/debug"

// release is the version of the wire contract that this broker speaks; clients read it from /health.
const release = "1.0.0"

// Version is the release and, where the build knows it, the revision it was built from, like "1.0.0+5ad3db6f".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	revision, dirty := "", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return release
	}
	return release + "+" + revision[:min(8, len(revision))] + dirty
}
