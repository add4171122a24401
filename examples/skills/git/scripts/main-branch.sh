# Resolves the revision "trunk" to the main branch of the repository.
# Whatever else is asked for prints nothing, and the value stays as it was.

[ "$1" = trunk ] || exit 0

git symbolic-ref --quiet --short refs/remotes/origin/HEAD && exit

for branch in main master trunk; do
    if git rev-parse --verify --quiet "refs/heads/$branch" >/dev/null; then
        echo "$branch"
        exit
    fi
done
