package auth

// Roles is a set of roles. Roles have no order: a set of one does not imply another.
type Roles uint8

// The roles of the wire contract.
const (
	ReadOnly Roles = 1 << iota
	WriteOnly
	ReadWrite
	Admin
)

// Any reports whether the two sets have a role in common.
func (r Roles) Any(of Roles) bool { return r&of != 0 }

// An Identity is who a verified token speaks for.
type Identity struct {
	// Subject is the token's sub claim, at most maxSubjectBytes; empty when it has none.
	Subject string
	Roles   Roles
}

// RoleNames are the words that stand for the roles in tokens. An empty word stands for none: no token can hold that role.
type RoleNames struct {
	Admin, ReadWrite, ReadOnly, WriteOnly string
}

func (n RoleNames) of(word string) Roles {
	var roles Roles
	if word == "" {
		return roles
	}
	// Two roles may share a word; a token with it then holds both.
	for _, row := range [...]struct {
		name string
		role Roles
	}{{n.Admin, Admin}, {n.ReadWrite, ReadWrite}, {n.ReadOnly, ReadOnly}, {n.WriteOnly, WriteOnly}} {
		if row.name == word {
			roles |= row.role
		}
	}
	return roles
}
