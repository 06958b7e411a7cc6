// Package identity knows the calling user: uid, gid, supplementary groups, name and home; it renders the one-user passwd
// and group files that a container is given, and reads the credentials of a unix socket's peer.
package identity
