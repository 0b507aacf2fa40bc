// Package test holds what concerns the project as a whole; its directories hold tests that cross rooms.
package test
