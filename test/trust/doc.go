// Package trust attacks what a whole broker promises about callers, tenants and encrypted payloads.
package trust
