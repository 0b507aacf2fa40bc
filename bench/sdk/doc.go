// Package sdk measures what the Go client costs for each message, beside a bare HTTP request with the same bytes. The broker is a stub
// in the same process that answers at once, so that nothing else is in the figures.
//
//	go test ./bench/sdk -run '^$' -bench . -benchtime 3s
package sdk
