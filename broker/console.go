package broker

import (
	"queenmq/dashboard"
	"queenmq/internal/api"
)

// consolePage gives the files of the console the form in which the API serves them.
func consolePage(path string) (api.PageFile, bool) {
	file, found := dashboard.Find(path)
	if !found {
		return api.PageFile{}, false
	}
	return api.PageFile{
		Type: file.Type, Policy: dashboard.ContentSecurityPolicy, Body: file.Body, Compressed: file.Compressed, ETag: file.ETag,
	}, true
}
