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

// settings lists what this broker runs with, secrets masked.
func (b *Broker) settings() []api.Setting {
	values := b.cfg.Values()
	all := make([]api.Setting, len(values))
	for i, v := range values {
		all[i] = api.Setting{Name: v.Name, Value: v.Text, Source: v.Source, Default: v.Default, Doc: v.Doc}
	}
	return all
}
