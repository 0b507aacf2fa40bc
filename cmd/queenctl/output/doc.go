// Package output shows what a broker answered: as tables for people, as JSON, NDJSON or YAML for programs, or through a template.
//
// What a broker stores was written by strangers. Control characters, directional overrides and bytes that are no UTF-8 never
// reach a terminal raw: tables show them escaped wherever they go, and everything else is escaped on its way to a terminal by
// [SafeWriter]. Into files and pipes the exact bytes go. Numbers keep every digit in all formats: nothing is decoded into floats.
package output
