// Package deploy holds the files of deploy/ against the program: what they name exists, and what they promise happens.
package deploy
