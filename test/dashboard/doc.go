// Package dashboard drives the console in a browser against whole brokers: dashboard/e2e holds what a person would do, this package
// the brokers, their data and the browser's end. The same run makes the pictures in docs/screenshots.
package dashboard
