// Package brokers runs two brokers on one database and looks at what one learns of the other. Their own ways of finding out are switched
// off or made slow, so that what happens soon happens because of a hint.
package brokers
